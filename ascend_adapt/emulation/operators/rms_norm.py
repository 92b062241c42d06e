"""npu_rms_norm and its gradient, npu_add_rms_norm: y = x / sqrt(mean(x^2) + epsilon) * gamma."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.quantised import target, with_scale_of_rows
from ascend_adapt.emulation.operators.tensors import FLOATS, dtype, shape
from ascend_adapt.npu_limits import rms_norm as limits


@kernel("npu_rms_norm")
def rms_norm(self: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return y in the input's dtype, and the reciprocal root mean square (float32, size 1 in normalised dimensions)."""
    limits.DIMENSION_COUNT.require(self.dim() in limits.DIMENSIONS, f"input is {shape(self)}")
    _require_gamma(self, gamma)
    pair = self.dtype == gamma.dtype or (self.dtype in FLOATS and gamma.dtype == torch.float32)
    limits.DTYPES.require(pair and self.dtype in FLOATS, f"input is {dtype(self)}, gamma is {dtype(gamma)}")
    x = wide(self)
    rstd = torch.rsqrt(x.square().mean(_normalised(gamma), keepdim=True) + epsilon)
    return (x * rstd * wide(gamma)).to(self.dtype), rstd.float()


@kernel("npu_rms_norm_backward")
def rms_norm_backward(
    dy: torch.Tensor, self: torch.Tensor, gamma: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of the input (in its dtype) and of gamma (in float32)."""
    normalised = _normalised(gamma)
    unit = wide(self) * rstd
    scaled = wide(dy) * wide(gamma)
    dx = rstd * (scaled - unit * (scaled * unit).mean(normalised, keepdim=True))
    return dx.to(self.dtype), (wide(dy) * unit).reshape(-1, *gamma.shape).sum(0).float()


@kernel("npu_add_rms_norm", needs_a2=True)
def add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the norm of x1 + x2, the reciprocal root mean square, and x1 + x2 itself."""
    one_dtype = x1.dtype == x2.dtype == gamma.dtype and x1.dtype in FLOATS
    found = f"x1 is {dtype(x1)} {shape(x1)}, x2 is {dtype(x2)} {shape(x2)}, gamma is {dtype(gamma)}"
    limits.ADDENDS.require(one_dtype and x1.shape == x2.shape, found)
    limits.NO_GRADIENT.require(
        not (x1.requires_grad or x2.requires_grad or gamma.requires_grad), "an input requires grad"
    )
    total = (wide(x1) + wide(x2)).to(x1.dtype)
    y, rstd = rms_norm(total, gamma, epsilon)
    return y, rstd, total


def _require_gamma(x: torch.Tensor, gamma: torch.Tensor) -> None:
    fits = 0 < gamma.dim() <= x.dim() and x.shape[x.dim() - gamma.dim() :] == gamma.shape
    limits.GAMMA_SHAPE.require(fits, f"gamma is {shape(gamma)}, the input is {shape(x)}")


def _normalised(gamma: torch.Tensor) -> tuple[int, ...]:
    return tuple(range(-gamma.dim(), 0))


@kernel("npu_add_rms_norm_v2_functional", needs_a2=True)
def add_rms_norm_v2_functional(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the reciprocal root mean square, the norm of x1 + x2, and x1 + x2."""
    y, rstd, total = add_rms_norm(x1, x2, gamma, epsilon)
    return rstd, y, total


@kernel("npu_add_rms_norm_v2", needs_a2=True)
def add_rms_norm_v2(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Write the norm of x1 + x2 to x1, and x1 + x2 to x2; return the reciprocal root mean square."""
    y, rstd, total = add_rms_norm(x1, x2, gamma, epsilon)
    x1.copy_(y)
    x2.copy_(total)
    return rstd


@kernel("npu_add_rms_norm_cast", needs_a2=True)
def add_rms_norm_cast(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the norm of x1 + x2 in float32 and in the input's dtype, the reciprocal root mean square, and x1 + x2."""
    y, rstd, total = add_rms_norm(x1, x2, gamma, epsilon)
    precise = wide(total) * rstd * wide(gamma)
    return precise.float(), y, rstd, total


@kernel("npu_gemma_rms_norm")
def gemma_rms_norm(self: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x / sqrt(mean(x^2) + epsilon) * (1 + gamma), and the reciprocal root mean square."""
    _require_gamma(self, gamma)
    x = wide(self)
    rstd = torch.rsqrt(x.square().mean(_normalised(gamma), keepdim=True) + epsilon)
    return (x * rstd * (1 + wide(gamma))).to(self.dtype), rstd.float()


@kernel("npu_add_rms_norm_dynamic_quant", needs_a2=True)
def add_rms_norm_dynamic_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    smooth_scale1: torch.Tensor | None,
    smooth_scale2: torch.Tensor | None,
    beta: torch.Tensor | None,
    epsilon: float,
    output_mask: list[bool] | None,
    y_dtype: int | torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the norm of x1 + x2 times each smooth scale as integers, twice; x1 + x2; and the scales of both's rows.

    ``output_mask`` is what is computed: by default the second only if both smooth scales are given. The others are one
    element.
    """
    _require_gamma(x1, gamma)
    total = wide(x1) + wide(x2)
    y = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + epsilon) * wide(gamma)
    y = y if beta is None else y + wide(beta)
    both = smooth_scale1 is not None and smooth_scale2 is not None
    first, second = (
        with_scale_of_rows(y if smooth is None else y * wide(smooth), target(y_dtype))
        if is_computed
        else (y.new_zeros(1, dtype=torch.int8), y.new_zeros(1))
        for smooth, is_computed in zip((smooth_scale1, smooth_scale2), output_mask or (True, both), strict=True)
    )
    return first[0], second[0], total.to(x1.dtype), first[1], second[1]
