"""Gradient accumulation in the matrix product: a linear layer adds its weight's gradient to an fp32 sum.

Otherwise every micro batch writes a 16-bit gradient, reads it again and adds it to the sum with another kernel: 12
bytes per parameter instead of 8, and one rounding more. Megatron-LM calls it gradient accumulation fusion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ascend_adapt.kernels.wide_products import are_fused

AddProduct = Callable[[torch.Tensor, torch.Tensor], bool]
"""Adds left [out, T] @ right [T, in] to the gradient of a weight; False if the caller must return the gradient."""


class ComputeWeight(torch.nn.Parameter):
    """Compute weight: the 16-bit copy of a master weight, whose gradients are accumulated in another dtype."""

    add_product: AddProduct | None = None


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return x W^T + b, [B, S, out]; the gradient of a compute weight is accumulated by its matrix product."""
    if torch.compiler.is_compiling() or not _accumulates(weight):
        return functional.linear(x, weight, bias)
    result: torch.Tensor = _Linear.apply(x, weight, bias)
    return result


def weight_gradient(rows: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a linear layer's weight, or None if it was accumulated.

    ``rows`` is the gradient of the output, [T, out], and ``x`` the input, [T, in]. ``weight`` is the parameter itself.
    """
    if _accumulates(weight) and weight.add_product(rows.t(), x):
        return None
    return rows.t() @ x


def _accumulates(weight: torch.Tensor) -> bool:
    return getattr(weight, "add_product", None) is not None and are_fused(weight.device)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.weight = weight  # recomputation saves a tensor without the parameter's attributes
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, weight), rows = ctx.saved_tensors, grads[0].reshape(-1, grads[0].shape[-1])
        of_x = (rows @ weight).view(x.shape) if ctx.needs_input_grad[0] else None
        of_weight = weight_gradient(rows, x.reshape(len(rows), -1), ctx.weight) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, rows.sum(0) if ctx.needs_input_grad[2] else None
