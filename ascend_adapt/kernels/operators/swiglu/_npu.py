"""torch_npu's swiglu, within its documented limits."""

from __future__ import annotations

import torch

from ascend_adapt.kernels import npu
from ascend_adapt.kernels.operators.swiglu import SwigluCall

SWIGLU = npu.Operator("npu_swiglu(Tensor self, int dim=-1) -> Tensor", ("self", "dim"))


def supports(call: SwigluCall) -> str:
    """Return "" or the documented limit that the call exceeds."""
    if call.bias is not None:
        return "it adds no bias"
    if reason := npu.dtype_reason(call.x):
        return reason
    if not 1 <= call.x.dim() <= 8 or not call.x.numel():
        return f"x {list(call.x.shape)} is empty or has not 1 to 8 axes"
    return SWIGLU.difference()


def run(call: SwigluCall) -> torch.Tensor:
    """Return the gated half; the operator takes contiguous tensors only."""
    result: torch.Tensor = SWIGLU(call.x.contiguous(), -1)
    return result
