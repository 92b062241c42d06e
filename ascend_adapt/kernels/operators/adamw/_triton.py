"""AdamW in one pass over all parameters, including gradients of any dtype, the factor and 16-bit copies.

With a 16-bit gradient and copy, each parameter moves 28 bytes. torch's kernels for the cast of the gradient, the
clipping, the step and the copy move 46 bytes. The arithmetic is that of torch's fused AdamW, in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.operators.adamw import AdamwCall
from ascend_adapt.kernels.triton_launch import Launcher

_TILE, _TILES, _WARPS = 1024, 2, 4
_CHUNK = _TILE * _TILES
"""Number of elements per program."""

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_ALIGNMENT = 16
_KEPT = 16


def supports(call: AdamwCall) -> str:
    """Return "" or why the Triton kernel does not support the call."""
    for param, grad, mean, square in zip(call.params, call.grads, call.exp_avgs, call.exp_avg_sqs, strict=True):
        if not param.dtype == mean.dtype == square.dtype == torch.float32:
            return "it takes parameters and moments in fp32"
        if grad.dtype not in _DTYPES or grad.dtype != call.grads[0].dtype:
            return "it takes gradients in one of fp32, fp16 and bf16"
        if not all(each.is_contiguous() for each in (param, grad, mean, square)):
            return "it takes contiguous tensors"
    for copy in call.copies:
        if copy.dtype not in _DTYPES or copy.dtype != call.copies[0].dtype or not copy.is_contiguous():
            return "it takes contiguous copies in one of fp32, fp16 and bf16"
    if any(step.dim() or step.device != call.params[0].device for step in call.steps):
        return "it takes 0-d step counters on the device of the parameters"
    return ""


def run(call: AdamwCall) -> None:
    """Do one AdamW step."""
    device = call.params[0].device
    torch._foreach_add_(list(call.steps), 1.0)
    # Computed in fp64: 1 - beta2 ** 1 is a thousandth, and fp32 would keep four digits of it.
    counts = torch.stack(list(call.steps)).double()
    first, second = 1.0 - call.beta1**counts, (1.0 - call.beta2**counts).sqrt()
    corrections = torch.stack([first, second]).float()
    table = _tables(call, device)
    addresses = table.addresses_of(_columns(call), device)
    if _is_captured(device):
        _in_graphs.append((table, addresses))
    lr = call.lr if isinstance(call.lr, torch.Tensor) else float(call.lr)
    _launch(
        len(table.chunks),
        addresses.numbers, table.sizes, table.chunks, corrections, lr, call.factor, call.found_inf,
        len(call.params), float(call.weight_decay), float(call.beta1), float(1.0 - call.beta1), float(call.beta2),
        float(1.0 - call.beta2), float(call.eps), bool(call.maximize), isinstance(lr, torch.Tensor),
        call.factor is not None, call.found_inf is not None, _DTYPES[call.grads[0].dtype],
        _DTYPES[call.copies[0].dtype] if call.copies else -1, addresses.aligned, table.even, _TILE, _TILES,
        warps=_WARPS,
    )  # fmt: skip
    if call.found_inf is not None:
        torch._foreach_sub_(list(call.steps), [call.found_inf] * len(call.steps))


class _Addresses:
    """Addresses of a call's tensors, in device memory because a kernel does not take lists of pointers."""

    def __init__(self, found: Sequence[int], device: torch.device) -> None:
        self.aligned = all(address % _ALIGNMENT == 0 for address in found)
        self.numbers = _on_device(torch.tensor(found), device)


class _Tables:
    """Device tables of a call: sizes of its tensors, chunks of its programs, and the addresses seen so far."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        counts = torch.tensor([-(-size // _CHUNK) for size in sizes])
        which = torch.repeat_interleave(torch.arange(len(sizes)), counts)
        within = torch.arange(len(which)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        self.sizes = _on_device(torch.tensor(sizes), device)
        self.even = all(size % _ALIGNMENT == 0 for size in sizes)
        """Whether no mask splits a vectorized load."""
        self.chunks = _on_device(torch.stack([which, within], 1).int(), device)
        self._addresses: dict[tuple[int, ...], _Addresses] = {}

    def addresses_of(self, columns: Sequence[Sequence[torch.Tensor]], device: torch.device) -> _Addresses:
        """Return the addresses of the tensors, which may change from step to step."""
        found = tuple(each.data_ptr() for column in columns for each in column)
        if found not in self._addresses:
            _make_room(self._addresses)
            self._addresses[found] = _Addresses(found, device)
        return self._addresses[found]


_known: dict[tuple[Any, ...], _Tables] = {}
_in_graphs: list[tuple[_Tables, _Addresses]] = []
"""What a CUDA graph reads at each replay. It must not be freed when the tables of other steps are prepared."""


def _tables(call: AdamwCall, device: torch.device) -> _Tables:
    sizes = tuple(each.numel() for each in call.params)
    key = (device, call.params[0].data_ptr(), sizes)
    if key not in _known:
        _make_room(_known)
        _known[key] = _Tables(sizes, device)
    return _known[key]


def _columns(call: AdamwCall) -> tuple[Sequence[torch.Tensor], ...]:
    return (call.params, call.grads, call.exp_avgs, call.exp_avg_sqs, call.copies or call.params)


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
def _load(address, offsets, mask, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
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
def _store(address, offsets, values, mask, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    if DTYPE == 0:
        pointer = address.to(tl.pointer_type(tl.float32))
    elif DTYPE == 1:
        pointer = address.to(tl.pointer_type(tl.bfloat16))
    else:
        pointer = address.to(tl.pointer_type(tl.float16))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    tl.store(pointer + offsets, values.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _adamw_kernel(
    addresses, sizes, chunks, corrections, lr, factor, found_inf, tensors,
    weight_decay, beta1, rest1, beta2, rest2, eps, MAXIMIZE: tl.constexpr, LR_IS_TENSOR: tl.constexpr,
    HAS_FACTOR: tl.constexpr, MAY_SKIP: tl.constexpr, GRAD: tl.constexpr, COPY: tl.constexpr, ALIGNED: tl.constexpr,
    EVEN: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Update one chunk of one parameter. ``addresses`` has rows of parameters, gradients, both moments and copies."""
    program = tl.program_id(0).to(tl.int64)
    which = tl.load(chunks + 2 * program).to(tl.int64)
    start = tl.load(chunks + 2 * program + 1).to(tl.int64) * (TILE * TILES)
    size = tl.load(sizes + which)
    if MAY_SKIP:
        size = tl.where(tl.load(found_inf) == 0.0, size, 0)  # of 0 elements, nothing is read or written
    if EVEN:
        size = tl.multiple_of(size, 16)
    row = addresses + which
    rate = lr
    if LR_IS_TENSOR:
        rate = tl.load(lr)
    step_size = rate / tl.load(corrections + which)
    root = tl.load(corrections + tensors + which)
    decay = 1.0 - rate * weight_decay
    times = 1.0
    if HAS_FACTOR:
        times = tl.load(factor)
    param, grad, mean, square = (
        tl.load(row), tl.load(row + tensors), tl.load(row + 2 * tensors), tl.load(row + 3 * tensors)
    )  # fmt: skip
    for tile in range(TILES):
        offsets = start + tile * TILE + tl.arange(0, TILE)
        inside = offsets < size
        p = _load(param, offsets, inside, 0, ALIGNED)
        g = _load(grad, offsets, inside, GRAD, ALIGNED)
        m = _load(mean, offsets, inside, 0, ALIGNED)
        v = _load(square, offsets, inside, 0, ALIGNED)
        if HAS_FACTOR:
            g = g * times
        if MAXIMIZE:
            g = -g
        m = m + rest1 * (g - m)
        v = beta2 * v + rest2 * g * g
        p = p * decay - step_size * m / (tl.sqrt(v) / root + eps)
        _store(param, offsets, p, inside, 0, ALIGNED)
        _store(mean, offsets, m, inside, 0, ALIGNED)
        _store(square, offsets, v, inside, 0, ALIGNED)
        if COPY >= 0:
            _store(tl.load(row + 4 * tensors), offsets, p, inside, COPY, ALIGNED)


_launch = Launcher(_adamw_kernel)
