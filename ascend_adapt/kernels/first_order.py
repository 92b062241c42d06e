"""Gradients that have no gradient of their own, and say so: autograd would leave a penalty on them out without a word.

torch's once_differentiable does not see it where only what was saved depends on the inputs, as behind ``loss.sum()``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ascend_adapt.errors import KernelError


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function's ``backward`` whose results, with create_graph, raise when their own gradient is asked for."""

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
            "kernel: the gradient of its gradient was asked for, expected first derivatives only — compute what the "
            "penalty looks at in plain torch, or disable the swap"
        )
