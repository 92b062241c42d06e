"""L2 norms by torch's foreach operator."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.operators.l2_norms import L2NormsCall


def supports(call: L2NormsCall) -> str:
    """Return "", because torch supports every call."""
    return ""


def run(call: L2NormsCall) -> torch.Tensor:
    """Return the norms."""
    # By default, the norm of a 16-bit tensor has the tensor's dtype, with three significant digits.
    wide = {"dtype": torch.float32} if call.tensors[0].element_size() == 2 else {}
    return torch.stack(torch._foreach_norm(list(call.tensors), **wide))
