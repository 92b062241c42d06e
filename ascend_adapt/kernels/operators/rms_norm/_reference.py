"""Reference of rms_norm, in plain torch."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.operators.rms_norm import RmsNormCall


def supports(call: RmsNormCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: RmsNormCall) -> torch.Tensor:
    """Return the normalised tensor."""
    x = call.x.to(torch.promote_types(call.x.dtype, torch.float32))
    result = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + call.eps)
    if call.weight is not None:
        result = result * call.weight
    return result.to(call.x.dtype)
