"""Dropout operators; their masks of bits (or bytes) are generated in the forward and reused in the backward pass."""

from __future__ import annotations

import math
from typing import Any

import torch

from ascend_adapt.emulation.operators.dropout_mask import draw, keep_mask, packed, unpacked
from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import dtype, shape
from ascend_adapt.npu_limits import dropout as limits


@kernel("_npu_dropout")
def dropout(self: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input after dropout with probability ``p``, and the packed mask."""
    _require_probability(self, p)
    mask = packed(keep_mask(self.numel(), 1 - p, *draw()))
    return _masked(self, mask, p), mask


@kernel("npu_dropout_do_mask")
def dropout_do_mask(self: torch.Tensor, mask: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input with a packed mask applied, and the mask itself."""
    _require_probability(self, p)
    _require_mask(self, mask)
    return _masked(self, mask, p), mask


@kernel("npu_dropout_backward")
def dropout_backward(grad_output: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    """Return the gradient with the same mask applied."""
    _require_mask(grad_output, mask)
    return _masked(grad_output, mask, p)


@kernel("_dropout_with_byte_mask")
def dropout_with_byte_mask(self: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input after dropout with probability ``p``, and a mask with one byte for each element."""
    _require_probability(self, p)
    mask = keep_mask(self.numel(), 1 - p, *draw()).reshape(self.shape)
    return _kept(self, mask, p), mask.byte()


@kernel("_dropout_with_byte_mask_backward")
def dropout_with_byte_mask_backward(grad_output: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    """Return the gradient with the same mask applied."""
    found = f"mask is {dtype(mask)} {shape(mask)}, grad_output is {dtype(grad_output)} {shape(grad_output)}"
    fits = mask.dtype == torch.uint8 and mask.numel() == grad_output.numel() and grad_output.is_floating_point()
    limits.BYTE_MASK.require(fits, found)
    return _kept(grad_output, mask.reshape(grad_output.shape), p)


@kernel("npu_dropout_gen_mask", dispatch_key="CompositeImplicitAutograd")
def dropout_gen_mask(
    size: list[int], p: float, dtype: Any, layout: Any, device: Any, pin_memory: bool | None
) -> torch.Tensor:
    """Return a packed mask for a tensor of this size and any dtype."""
    limits.PROBABILITY.require(0 <= p <= 1, f"p is {p}")
    return packed(keep_mask(math.prod(size), 1 - p, *draw()))


@kernel("_npu_dropout_gen_mask.Tensor")
def dropout_gen_mask_from_seed(
    self: torch.Tensor, size: list[int], p: float, seed: int, offset: int, parallel: bool | None, sync: bool | None
) -> torch.Tensor:
    """Return the packed mask for a seed and an offset, for the argument ``dropout_mask`` of npu_fusion_attention."""
    limits.PROBABILITY.require(0 <= p <= 1, f"p is {p}")
    return packed(keep_mask(math.prod(size), 1 - p, seed, offset))


@kernel("npu_dropout_with_add_softmax")
def dropout_with_add_softmax(
    self: torch.Tensor, x1: torch.Tensor, alpha: float, prob: float, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a mask of bytes, softmax(x1 + alpha * self), and the softmax after dropout."""
    fits = self.shape == x1.shape and self.dim() == 4 and self.shape[0] * self.shape[1] % 32 == 0
    fits = fits and all(size in (128, 256, 384, 512) for size in self.shape[-2:])
    limits.SOFTMAX_SHAPES.require(fits, f"self is {shape(self)}, x1 is {shape(x1)}")
    limits.SOFTMAX_DIM.require(dim == -1 and 0 <= prob < 1, f"dim is {dim}, prob is {prob}")
    limits.SOFTMAX_X1_GRADIENT.require(not x1.requires_grad, "x1 requires grad")
    mask = torch.zeros((self.numel() + 127) // 128 * 128, dtype=torch.uint8)
    mask[: self.numel()] = keep_mask(self.numel(), 1 - prob, *draw())
    share = (wide(x1) + alpha * wide(self)).softmax(-1)
    kept = share * mask[: self.numel()].reshape(self.shape) / (1 - prob)
    return mask, share.to(x1.dtype), kept.to(self.dtype)


@kernel("npu_dropout_with_add_softmax_backward")
def dropout_with_add_softmax_backward(
    grad: torch.Tensor, mask: torch.Tensor, softmax_out: torch.Tensor, alpha: float, prob: float, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of ``self``, and the incoming gradient instead of the gradient of ``x1``."""
    share = wide(softmax_out)
    kept = wide(grad) * mask[: share.numel()].reshape(share.shape) / (1 - prob)
    slope = share * (kept - (kept * share).sum(-1, keepdim=True))
    return (alpha * slope).to(softmax_out.dtype), grad


def _masked(x: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    return _kept(x, unpacked(mask, x.numel()).reshape(x.shape), p)


def _kept(x: torch.Tensor, keep: torch.Tensor, p: float) -> torch.Tensor:
    return torch.zeros_like(x) if p == 1 else (wide(x) * keep / (1 - p)).to(x.dtype)


def _require_probability(x: torch.Tensor, p: float) -> None:
    limits.PROBABILITY.require(0 <= p <= 1 and x.is_floating_point(), f"p is {p}, input is {dtype(x)}")


def _require_mask(x: torch.Tensor, mask: torch.Tensor) -> None:
    bits = (x.numel() + 127) // 128 * 128
    found = f"mask is {dtype(mask)} {shape(mask)}, the input has {x.numel()} elements"
    limits.MASK_SIZE.require(mask.dtype == torch.uint8 and mask.numel() * 8 == bits, found)
