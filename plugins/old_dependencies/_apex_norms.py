"""Norms of apex on ascend_adapt's kernels; this module is imported on the first use of apex.normalization."""

from __future__ import annotations

import numbers
from typing import Any

import torch

from ascend_adapt.kernels import layer_norm, rms_norm

from .layer_norm_extensions import backward_affine, forward_affine

NAMES = (
    "FusedLayerNorm",
    "MixedFusedLayerNorm",
    "FusedRMSNorm",
    "MixedFusedRMSNorm",
    "FusedLayerNormAffineFunction",
)


class FusedLayerNorm(torch.nn.LayerNorm):
    """Layer norm with the parameter names of torch and apex."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, memory_efficient: bool = False
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the norm of the input, in its dtype."""
        if len(self.normalized_shape) == 1 and input.dtype == (input if self.weight is None else self.weight).dtype:
            return layer_norm(input, self.weight, self.bias, eps=self.eps)
        return super().forward(input)


class MixedFusedLayerNorm(FusedLayerNorm):
    """Layer norm with output in the dtype of its parameters."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, *, memory_efficient: bool = False, **_: Any) -> None:
        super().__init__(normalized_shape, eps)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the norm of the input, in the dtype of the weight."""
        return FusedLayerNormAffineFunction.apply(input, self.weight, self.bias, self.normalized_shape, self.eps)


class FusedRMSNorm(torch.nn.Module):
    """RMS norm over the last axis, with the parameter name of apex."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, memory_efficient: bool = False
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, numbers.Integral) else tuple(normalized_shape)
        if len(shape) != 1:
            raise ValueError(f"FusedRMSNorm: normalized_shape {list(shape)}, expected one axis — flatten the others")
        self.normalized_shape, self.eps = torch.Size(shape), eps
        self.weight = torch.nn.Parameter(torch.ones(shape)) if elementwise_affine else None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the norm of the input, in its dtype."""
        return rms_norm(input, self.weight, eps=self.eps)


class MixedFusedRMSNorm(FusedRMSNorm):
    """RMS norm with output in the dtype of its weight."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, *, memory_efficient: bool = False, **_: Any) -> None:
        super().__init__(normalized_shape, eps)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the norm of the input, in the dtype of the weight."""
        weight: Any = self.weight
        wide = torch.promote_types(input.dtype, weight.dtype)
        return rms_norm(input.to(wide), weight.to(wide), eps=self.eps).to(weight.dtype)


class FusedLayerNormAffineFunction(torch.autograd.Function):
    """Layer norm as an autograd function that Megatron calls directly."""

    @staticmethod
    def forward(
        ctx: Any, input: Any, weight: Any, bias: Any, normalized_shape: Any, eps: float, memory_efficient: bool = False
    ) -> Any:
        """Return the norm of the input, in the dtype of the weight."""
        output, mean, inverse = forward_affine(input, normalized_shape, weight, bias, eps)
        ctx.save_for_backward(input, weight, bias, mean, inverse)
        ctx.shape, ctx.eps = normalized_shape, eps
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Return the gradients of input, weight and bias."""
        input, weight, bias, mean, inverse = ctx.saved_tensors
        grads = backward_affine(grad.contiguous(), mean, inverse, input, ctx.shape, weight, bias, ctx.eps)
        return (*grads, None, None, None)
