"""First-order gradients that raise on double backward; autograd would silently drop a gradient penalty.

torch's once_differentiable misses the case where only saved tensors depend on the inputs, as after ``loss.sum()``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ascend_adapt.errors import KernelError


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an autograd function's ``backward``: with create_graph, its results raise when they are differentiated."""

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return backward(ctx, *grads)
        with torch.no_grad():
            results = backward(ctx, *grads)
        each_of = results if isinstance(results, tuple) else (results,)
        return tuple(None if each is None else _Refusal.apply(each.detach().requires_grad_()) for each in each_of)

    return once


class _Refusal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> None:
        raise KernelError(
            "kernel: its gradient was differentiated, expected first derivatives only — compute what the "
            "penalty uses in plain torch, or disable the swap"
        )
