"""Cached launch of a compiled Triton kernel, without Triton's inspection of each argument.

On an H100 host, the inspection takes 14 of the 26 microseconds of a launch, and even a softmax of 64 Mi scores waits
for it.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

_KINDS_KEPT = 1024


class Launcher:
    """A Triton kernel with a cache of its compiled variants, by kind of arguments."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(self, programs: int, *arguments: Any, warps: int, sizes: tuple[int, ...] = ()) -> None:
        """Launch ``programs`` programs on the device of the first argument. Constants come last, in order.

        ``sizes`` are the last arguments, as a tuple that the caller caches.
        """
        if torch.compiler.is_compiling():
            self.kernel[(programs,)](*arguments, *sizes, num_warps=warps)
            return
        first = arguments[0]
        index = first.get_device()
        elsewhere = first.is_cuda and index != torch.cuda.current_device()
        with torch.cuda.device(index) if elsewhere else _HERE:
            # Triton specialises a kernel on the dtype and alignment of tensors and on integers, but not on floats.
            kind = (
                *(index, programs, warps, sizes),
                *[
                    each
                    if type(each) in _BY_VALUE
                    else float
                    if type(each) is float
                    else (each.dtype, each.data_ptr() % 16)
                    for each in arguments
                ],
            )
            again = self._compiled.get(kind)
            if again is not None:
                again(*arguments, *sizes)
                return
            compiled = self.kernel[(programs,)](*arguments, *sizes, num_warps=warps)
            # Triton's interpreter returns None, and its asynchronous compiler an object without [].
            if hasattr(compiled, "__getitem__"):
                if len(self._compiled) >= _KINDS_KEPT:
                    self._compiled.clear()
                self._compiled[kind] = compiled[programs, 1, 1]


_BY_VALUE = frozenset((int, bool, type(None)))
_HERE = nullcontext()
