"""Reference of add_norm, in plain torch."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.operators.add_norm import AddNormCall
from ascend_adapt.kernels.operators.bias_dropout_add._reference import total


def supports(call: AddNormCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: AddNormCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum and its norm."""
    y = total(call.x, call.branch, call.branch_bias, call.dropout_p, call.seed)
    centred = y if call.rms else y - y.mean(-1, keepdim=True)
    norm = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + call.eps) * call.weight
    if call.bias is not None:
        norm = norm + call.bias
    return y.to(call.x.dtype), norm.to(call.x.dtype)
