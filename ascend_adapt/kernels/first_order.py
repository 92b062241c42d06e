"""First-order gradients that raise on double backward, where autograd would silently drop a gradient penalty.

torch's once_differentiable misses the case where only saved tensors depend on the inputs, as after ``loss.sum()``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ascend_adapt.errors import KernelError


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an autograd function's ``backward``. With create_graph, differentiating its results raises an error."""

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return backward(ctx, *grads)
        with torch.no_grad():
            results = backward(ctx, *grads)
        return _refusing(results if isinstance(results, tuple) else (results,))

    return once


def refuse_second_order(results: Any) -> None:
    """Make differentiating the gradients of another library's operator raise an error."""
    if torch.compiler.is_compiling():
        return
    for result in results if isinstance(results, tuple) else (results,):
        if isinstance(result, torch.Tensor) and result.grad_fn is not None:
            result.grad_fn.register_hook(_refuse_with_graph)
            return  # all results of one operator share a node


def _refuse_with_graph(gradients: tuple[torch.Tensor | None, ...], of_results: Any) -> Any:
    return _refusing(gradients) if torch.is_grad_enabled() else None


def _refusing(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
    return tuple(None if each is None else _Refusal.apply(each.detach().requires_grad_()) for each in gradients)


class _Refusal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> None:
        raise KernelError(
            "kernel: its gradient was differentiated, expected first derivatives only — compute what the penalty uses "
            "in plain torch, or disable the swap"
        )
