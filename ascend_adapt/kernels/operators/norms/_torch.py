"""Norms by torch's operator for lists of tensors."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.operators.norms import NormsCall


def supports(call: NormsCall) -> str:
    """Return "", because torch supports every call."""
    return ""


def run(call: NormsCall) -> torch.Tensor:
    """Return the norms."""
    # By default, the norm of a 16-bit tensor has the tensor's dtype, with three significant digits.
    wide = {"dtype": torch.float32} if call.tensors[0].element_size() == 2 else {}
    return torch.stack(torch._foreach_norm(list(call.tensors), **wide))
