"""Collectives that other work overlaps: each starts in one autograd node, and is waited for in another.

The adjoint collective of the backward pass starts in the backward of the second node, and is waited for in that of the
first. Autograd runs nodes in the reverse order of their creation, so whatever ran between start and wait in the forward
pass has its gradient computed between start and wait in the backward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ascend_adapt.native.parallel.accumulation import accumulated

Collective = Callable[[torch.Tensor], tuple[torch.Tensor, Any]]
"""Starts a collective along the first axis; returns its result, valid after waiting, and the work handle.

The handle is None if there is no collective.
"""


class InFlight:
    """A tensor that a collective is writing."""

    def __init__(self, x: torch.Tensor, collective: Collective, adjoint: Collective, axis: int = 0) -> None:
        """Start ``collective`` along ``axis`` of ``x``; the backward pass starts ``adjoint`` on the gradient."""
        self._transfer, self._axis = _Transfer(collective, adjoint), axis
        self._value: torch.Tensor = _Start.apply(x.transpose(0, axis) if axis else x, self._transfer)

    def wait(self) -> torch.Tensor:
        """Return the tensor, valid for what is launched from now on."""
        arrived: torch.Tensor = _Wait.apply(self._value, self._transfer)
        return arrived.transpose(0, self._axis) if self._axis else arrived


class _Transfer:
    """The collective of the pass that is running, with the tensors that must outlive it."""

    def __init__(self, collective: Collective, adjoint: Collective) -> None:
        self.collective, self.adjoint = collective, adjoint
        self._pending: tuple[torch.Tensor, torch.Tensor, Any] | None = None

    def start(self, collective: Collective, x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Start a collective; return its result, and whether it is written to ``x`` itself."""
        result, work = collective(x)
        self._pending = x, result, work
        return result, work is not None and result is x

    def wait(self) -> torch.Tensor:
        """Wait for the collective; return its result."""
        assert self._pending is not None
        (_, result, work), self._pending = self._pending, None
        if work is not None:
            work.wait()
        return result


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, transfer: _Transfer) -> torch.Tensor:
        ctx.transfer = transfer
        result, is_in_place = transfer.start(transfer.collective, x)
        if is_in_place:
            ctx.mark_dirty(x)
        return result

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.transfer.wait(), None


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, transfer: _Transfer) -> torch.Tensor:
        ctx.transfer = transfer
        transfer.wait()
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        # The result has another shape than this node's input: it reaches the first node as part of the transfer.
        ctx.transfer.start(ctx.transfer.adjoint, grads[0])
        return grads[0], None


class Half:
    """What layers need to know of half a micro batch, while the other half's work overlaps its collectives."""

    def __init__(self, gradients: defaultdict[torch.Tensor, WeightGradient]) -> None:
        """``gradients``: of the weights of all layers, shared by both halves."""
        self._gradients = gradients
        self.meanwhile: Callable[[], None] | None = None
        """Work of the other half that is due in the middle of the next layer."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return x W^T + b; the weight's gradient is that of both halves."""
        result: torch.Tensor = _Linear.apply(x, weight, bias, self._gradients[weight])
        return result

    def hand_over(self) -> None:
        """Run the work of the other half that is due."""
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


class WeightGradient:
    """A weight's gradient of two halves: the second matrix product adds to the first, which needs no other kernel."""

    def __init__(self) -> None:
        self._first: torch.Tensor | None = None
        self._is_second = True

    def add(self, of_rows: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
        """Add a half's gradient; return the sum of both. None after the first, or if the step accumulates it."""
        self._is_second = not self._is_second
        if accumulated(of_rows, rows, weight, is_last=self._is_second):
            return None
        total, self._first = self._first, None
        if total is not None:
            return total.addmm_(of_rows.t(), rows)
        self._first = of_rows.t() @ rows
        return None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, gradient: WeightGradient
    ) -> torch.Tensor:
        ctx.gradient, ctx.weight = gradient, weight
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, weight), of_rows = ctx.saved_tensors, grads[0].reshape(-1, grads[0].shape[-1])
        of_x = (of_rows @ weight).view(x.shape)
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = ctx.gradient.add(of_rows, x.reshape(len(of_rows), -1), ctx.weight)
        return of_x, of_weight, of_rows.sum(0) if ctx.needs_input_grad[2] else None, None
