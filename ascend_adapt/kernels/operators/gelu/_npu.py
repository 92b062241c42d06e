"""GELU with torch_npu's npu_gelu, which takes the approximation by name. torch's gelu may approximate on an NPU."""

from __future__ import annotations

import torch

from ascend_adapt.kernels import npu
from ascend_adapt.kernels.operators.gelu import GeluCall
from ascend_adapt.npu_limits import gelu as limits

GELU = npu.Operator("npu_gelu(Tensor self, *, str approximate='none') -> Tensor", ("self", "approximate"))


def supports(call: GeluCall) -> str:
    """Return "" or why the operator does not support the call."""
    if call.bias is not None:
        return "it does not add a bias"
    if reason := npu.dtype_reason(call.x):
        return reason
    in_range = call.x.dim() in limits.DIMENSIONS
    return limits.DIMENSION_COUNT.unmet(in_range, f"x has {call.x.dim()} dimensions") or GELU.difference()


def run(call: GeluCall) -> torch.Tensor:
    """Return the GELU."""
    result: torch.Tensor = GELU(call.x, approximate=call.approximate)
    return result
