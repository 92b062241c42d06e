"""npu_scaled_masked_softmax and its gradient: softmax of scale * x, with masked positions filled with -10000.

The fill value is from op-plugin (test/test_base_ops/test_scaled_masked_softmax.py). With it, a fully masked row gives
a uniform distribution; minus infinity would give NaN.
"""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import FLOATS, dtype, shape
from ascend_adapt.npu_limits import masked_softmax as limits

FILL = -10000.0


@kernel("npu_scaled_masked_softmax")
def scaled_masked_softmax(x: torch.Tensor, mask: torch.Tensor, scale: float, fixed_triu_mask: bool) -> torch.Tensor:
    """Return the softmax over the last dimension, [..., H, W], in the dtype of x."""
    limits.FIXED_TRIU_MASK.require(not fixed_triu_mask, "fixed_triu_mask=True")
    limits.MASK_DTYPE.require(mask.dtype == torch.bool, f"mask is {dtype(mask)}")
    limits.DTYPE.require(x.dtype in FLOATS, f"x is {dtype(x)}")
    sizes = 2 <= x.dim() <= 4 and all(size in limits.LENGTHS for size in x.shape[-2:])
    limits.SIZES.require(sizes, f"x is {shape(x)}")
    found = f"mask is {shape(mask)}, x is {shape(x)}"
    pairs = zip(reversed(mask.shape), reversed(x.shape), strict=False)
    limits.BROADCAST.require(mask.dim() <= x.dim() and all(size in (1, whole) for size, whole in pairs), found)
    return (wide(x) * scale).masked_fill(mask, FILL).softmax(-1).to(x.dtype)


@kernel("npu_scaled_masked_softmax_backward")
def scaled_masked_softmax_backward(
    y_grad: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, scale: float, fixed_triu_mask: bool
) -> torch.Tensor:
    """Return the gradient of x, which is zero at masked positions."""
    limits.FIXED_TRIU_MASK.require(not fixed_triu_mask, "fixed_triu_mask=True")
    share, dy = wide(y), wide(y_grad)
    dx = share * (dy - (dy * share).sum(-1, keepdim=True)) * scale
    return dx.masked_fill(mask, 0).to(y_grad.dtype)


@kernel("npu_masked_softmax_with_rel_pos_bias", needs_a2=True)
def masked_softmax_with_bias(
    x: torch.Tensor, atten_mask: torch.Tensor | None, relative_pos_bias: torch.Tensor, scale_value: float
) -> torch.Tensor:
    """Return the softmax of scale_value * x + atten_mask + relative_pos_bias, as the attention of Swin has it."""
    logits = wide(x) * scale_value + wide(relative_pos_bias)
    return (logits if atten_mask is None else logits + wide(atten_mask)).softmax(-1).to(x.dtype)
