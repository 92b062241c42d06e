"""RMS norm with torch_npu's npu_rms_norm, within its documented limits."""

from __future__ import annotations

import torch

from ascend_adapt.kernels import npu
from ascend_adapt.kernels.operators.rms_norm import RmsNormCall
from ascend_adapt.npu_limits import rms_norm as limits

RMS_NORM = npu.Operator(
    "npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)", ("self", "gamma", "epsilon")
)


def supports(call: RmsNormCall) -> str:
    """Return "" or the documented limit that the call exceeds."""
    if call.weight is None:
        return "it requires a weight"
    if reason := npu.dtype_reason(call.x, call.weight):
        return reason
    in_range = call.x.dim() in limits.DIMENSIONS
    return limits.DIMENSION_COUNT.unmet(in_range, f"x is {list(call.x.shape)}") or RMS_NORM.difference()


def run(call: RmsNormCall) -> torch.Tensor:
    """Return the normalised tensor."""
    result: torch.Tensor = RMS_NORM(call.x, call.weight, call.eps)[0]
    return result
