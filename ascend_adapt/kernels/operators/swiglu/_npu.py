"""SwiGLU with torch_npu's npu_swiglu, within its documented limits."""

from __future__ import annotations

import torch

from ascend_adapt.kernels import npu
from ascend_adapt.kernels.operators.swiglu import SwigluCall
from ascend_adapt.npu_limits import swiglu as limits

SWIGLU = npu.Operator("npu_swiglu(Tensor self, int dim=-1) -> Tensor", ("self", "dim"))


def supports(call: SwigluCall) -> str:
    """Return "" or the documented limit that the call exceeds."""
    if call.bias is not None:
        return "it does not add a bias"
    if reason := npu.dtype_reason(call.x):
        return reason
    kept = call.x.dim() in limits.DIMENSIONS and call.x.numel() > 0
    return limits.NOT_EMPTY.unmet(kept, f"x is {list(call.x.shape)}") or SWIGLU.difference()


def run(call: SwigluCall) -> torch.Tensor:
    """Return the gated activation. The operator requires a contiguous input."""
    result: torch.Tensor = SWIGLU(call.x.contiguous(), -1)
    return result
