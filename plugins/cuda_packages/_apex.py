"""apex's optimizers and norms, as the code bases that need apex get them."""

from __future__ import annotations

from ..old_dependencies._apex_norms import FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, MixedFusedRMSNorm
from ..old_dependencies._apex_optimizers import FusedAdam, FusedSGD

__all__ = ["FusedAdam", "FusedLayerNorm", "FusedRMSNorm", "FusedSGD", "MixedFusedLayerNorm", "MixedFusedRMSNorm"]
