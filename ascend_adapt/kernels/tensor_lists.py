"""Lists of tensors that a Triton kernel processes in one launch: tables of sizes, chunks and addresses.

A Triton kernel cannot take a list of pointers, so the addresses are in device memory. Each program processes one chunk
of one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The number that ``load`` and ``store`` take for each dtype."""
_ALIGNMENT = 16
_KEPT = 16


class Addresses:
    """Addresses of a call's tensors."""

    def __init__(self, found: Sequence[int], device: torch.device) -> None:
        self.aligned = all(address % _ALIGNMENT == 0 for address in found)
        self.numbers = _on_device(torch.tensor(found), device)


class Tables:
    """Device tables of a list of tensors: sizes, the chunks of the programs, and the addresses seen so far."""

    def __init__(self, sizes: Sequence[int], chunk: int, device: torch.device) -> None:
        counts = torch.tensor([-(-size // chunk) for size in sizes])
        before = counts.cumsum(0) - counts
        which = torch.repeat_interleave(torch.arange(len(sizes)), counts)
        within = torch.arange(len(which)) - torch.repeat_interleave(before, counts)
        self.sizes = _on_device(torch.tensor(sizes), device)
        self.even = all(size % _ALIGNMENT == 0 for size in sizes)
        """Whether no mask splits a vectorized load."""
        self.chunks = _on_device(torch.stack([which, within], 1).int(), device)
        """For each program, the index of its tensor, and that of its chunk in the tensor; int32 [programs, 2]."""
        self.programs = _on_device(torch.stack([before, before + counts], 1).int(), device)
        """For each tensor, the index of its first program, and that after its last; int32 [tensors, 2]."""
        self._addresses: dict[tuple[int, ...], Addresses] = {}

    def addresses_of(self, columns: Sequence[Sequence[torch.Tensor]], device: torch.device) -> Addresses:
        """Return the addresses of the tensors of all columns. They may change from step to step."""
        found = tuple(each.data_ptr() for column in columns for each in column)
        if found not in self._addresses:
            _make_room(self._addresses)
            self._addresses[found] = Addresses(found, device)
        addresses = self._addresses[found]
        if _is_captured(device):
            _in_graphs.append((self, addresses))
        return addresses


_known: dict[tuple[Any, ...], Tables] = {}
_in_graphs: list[tuple[Tables, Addresses]] = []
"""The tables that a CUDA graph reads at each replay, which must not be freed when those of other steps are created."""


def tables(tensors: Sequence[torch.Tensor], chunk: int, device: torch.device) -> Tables:
    """Return the tables of a list of tensors. They are cached for calls with tensors of the same sizes."""
    key = (device, chunk, *[each.numel() for each in tensors])
    if key not in _known:
        _make_room(_known)
        _known[key] = Tables(key[2:], chunk, device)
    return _known[key]


def _is_captured(device: torch.device) -> bool:
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def _make_room(kept: dict[Any, Any]) -> None:
    """Drop the oldest entries if there is no room for another one."""
    while len(kept) >= _KEPT:
        del kept[next(iter(kept))]


def _on_device(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the numbers on the device, copied asynchronously."""
    return (numbers.pin_memory() if device.type == "cuda" else numbers).to(device, non_blocking=True)


@triton.jit
def load(address, offsets, mask, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the elements at ``offsets`` of the tensor at ``address``, in fp32."""
    if DTYPE == 0:
        pointer = address.to(tl.pointer_type(tl.float32))
    elif DTYPE == 1:
        pointer = address.to(tl.pointer_type(tl.bfloat16))
    else:
        pointer = address.to(tl.pointer_type(tl.float16))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return tl.load(pointer + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store(address, offsets, values, mask, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Write elements at ``offsets`` of the tensor at ``address``."""
    if DTYPE == 0:
        pointer = address.to(tl.pointer_type(tl.float32))
    elif DTYPE == 1:
        pointer = address.to(tl.pointer_type(tl.bfloat16))
    else:
        pointer = address.to(tl.pointer_type(tl.float16))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    tl.store(pointer + offsets, values.to(pointer.dtype.element_ty), mask=mask)
