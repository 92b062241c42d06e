"""apex's optimizers and norms, shared with the patches for code bases that need apex."""

from __future__ import annotations

from ..old_dependencies._apex_norms import (
    FusedLayerNorm,
    FusedLayerNormAffineFunction,
    FusedRMSNorm,
    MixedFusedLayerNorm,
    MixedFusedRMSNorm,
)
from ..old_dependencies._apex_optimizers import FusedAdam, FusedSGD

__all__ = [
    "FusedAdam",
    "FusedLayerNorm",
    "FusedLayerNormAffineFunction",
    "FusedRMSNorm",
    "FusedSGD",
    "MixedFusedLayerNorm",
    "MixedFusedRMSNorm",
]
