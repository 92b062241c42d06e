"""Masked softmax with torch_npu's npu_scaled_masked_softmax, for calls with its fill of -10000, within its limits."""

from __future__ import annotations

import torch

from ascend_adapt.kernels import npu
from ascend_adapt.kernels.operators.masked_softmax import FINITE, MaskedSoftmaxCall
from ascend_adapt.npu_limits import masked_softmax as limits

SCALED_MASKED_SOFTMAX = npu.Operator(
    "npu_scaled_masked_softmax(Tensor x, Tensor mask, Scalar scale=1, bool fixed_triu_mask=False) -> Tensor",
    ("x", "mask", "scale", "fixed_triu_mask"),
)


def supports(call: MaskedSoftmaxCall) -> str:
    """Return "" or the documented limit that the call exceeds."""
    if reason := npu.dtype_reason(call.x):
        return reason
    if call.x.dim() not in (3, 4):
        return f"x {list(call.x.shape)} has neither 3 nor 4 axes"
    if not all(size in limits.LENGTHS for size in call.x.shape[-2:]):
        return limits.SIZES.unmet(False, f"x is {list(call.x.shape)}")
    if call.causal or (call.masked_out is not None and call.fill != FINITE):
        return "it fills with -10000, and the call requires exact masking"
    return SCALED_MASKED_SOFTMAX.difference()


def run(call: MaskedSoftmaxCall) -> torch.Tensor:
    """Return the probabilities."""
    x, mask = call.x, call.masked_out
    if mask is None:
        mask = torch.zeros(x.shape[-2:], dtype=torch.bool, device=x.device)
    x = x[None] if call.x.dim() == 3 else x
    mask = mask[(None,) * (4 - mask.dim())]
    mask = mask.expand(*mask.shape[:2], *x.shape[2:]).contiguous()
    # Only fixed_triu_mask=False is implemented.
    result = SCALED_MASKED_SOFTMAX(x.contiguous(), mask, float(call.scale), False)
    return result[0] if call.x.dim() == 3 else result
