"""ZeRO-3: compute weights of blocks, gathered for each pass, one bucket of blocks at a time into the same memory.

While a bucket computes, the next one is gathered: in the backward pass, the one before it. The backward pass begins
with the bucket that the forward pass ended with, which is not gathered again. Autograd keeps references to weights, not
copies, so the weights of a bucket are gathered again, to the same place, before its backward pass.

Only matrices are gathered in this way. Vectors (norms and biases) are small, and a fused norm also adds the bias of the
block before it, which may be in another bucket: ``native.parallel.zero`` gathers them once per step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn


class Bucket(Protocol):
    """The weights of some blocks."""

    def gather(self) -> Callable[[], None]:
        """Start gathering; return a function that completes it, and overwrites the weights of the other buckets."""


class BlockWeights:
    """The buckets of the blocks of a model, which share memory; one of them is held at a time.

    ``numbers`` has the bucket of each block in order. Last is the model itself, because its final norm and head follow
    the blocks; its number is the number of buckets.
    """

    def __init__(self, buckets: Sequence[Bucket], numbers: Mapping[nn.Module, int]) -> None:
        self._buckets, self._numbers = buckets, numbers
        self._firsts = {number: module for module, number in reversed(list(numbers.items()))}
        self._held: int | None = None
        self._coming: tuple[int, Callable[[], None]] | None = None
        """The bucket that is being gathered, and the function that completes it."""
        self._backward = 0
        """The bucket whose backward pass began last."""

    def restart(self) -> None:
        """Start gathering the first bucket, because master weights may have changed."""
        if self._coming is not None:
            self._complete()  # of abandoned passes: memory must not be freed while it is written
        self._held = None
        self._expect(0)

    def forget(self) -> None:
        """Forget what is held, after failed passes."""
        self._held = self._coming = None

    def enter(self, module: nn.Module, inputs: Sequence[torch.Tensor]) -> None:
        """Hold the weights of a block, and expect those of the next bucket.

        When the gradient of ``inputs`` is known, the backward pass of the bucket before begins.
        """
        number = self._numbers.get(module)
        if number is None:
            return
        # Inside a backward pass, only recomputation calls a block.
        is_recomputed = torch._C._current_graph_task_id() != -1
        trains = False
        if not is_recomputed and self._firsts[number] is module:
            for one in inputs:
                if one.requires_grad:
                    one.register_hook(functools.partial(self._begin_backward, number - 1))
                    trains = True
        if number == len(self._buckets):
            if trains:
                self._expect(number - 2)
            return
        self._hold(number)
        # Recomputation goes forward until the bucket whose backward pass follows.
        self._expect(number - 1 if is_recomputed and number >= self._backward else number + 1)

    @torch.no_grad()
    def _begin_backward(self, number: int, _: torch.Tensor) -> None:
        """Hold the weights of a bucket whose backward pass begins, and expect those of the one before."""
        if number < 0:
            return
        self._backward = number
        self._hold(number)
        self._expect(number - 1)

    def _hold(self, number: int) -> None:
        if self._held == number:
            return
        if self._coming is not None:
            self._complete()
        if self._held != number:
            self._coming = number, self._buckets[number].gather()
            self._complete()

    def _complete(self) -> None:
        assert self._coming is not None
        self._held, complete = self._coming
        self._coming = None
        complete()

    def _expect(self, number: int) -> None:
        if self._coming is None and number != self._held and 0 <= number < len(self._buckets):
            self._coming = number, self._buckets[number].gather()
