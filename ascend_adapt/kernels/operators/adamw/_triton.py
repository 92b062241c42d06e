"""AdamW in one pass over all parameters, including gradients of any dtype, the factor and 16-bit copies.

With a 16-bit gradient and copy, each parameter moves 28 bytes. torch's kernels for the cast of the gradient, the
clipping, the step and the copy move 46 bytes. The arithmetic is that of torch's fused AdamW, in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels import tensor_lists
from ascend_adapt.kernels.operators.adamw import AdamwCall
from ascend_adapt.kernels.tensor_lists import DTYPES, load, store
from ascend_adapt.kernels.triton_launch import Launcher

_TILE, _TILES, _WARPS = 1024, 2, 4
_CHUNK = _TILE * _TILES
"""Number of elements per program."""


def supports(call: AdamwCall) -> str:
    """Return "" or why the Triton kernel does not support the call."""
    for param, grad, mean, square in zip(call.params, call.grads, call.exp_avgs, call.exp_avg_sqs, strict=True):
        if not param.dtype == mean.dtype == square.dtype == torch.float32:
            return "it takes parameters and moments in fp32"
        if grad.dtype not in DTYPES or grad.dtype != call.grads[0].dtype:
            return "it takes gradients in one of fp32, fp16 and bf16"
        if not all(each.is_contiguous() for each in (param, grad, mean, square)):
            return "it takes contiguous tensors"
    for copy in call.copies:
        if copy.dtype not in DTYPES or copy.dtype != call.copies[0].dtype or not copy.is_contiguous():
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
    table = tensor_lists.tables(call.params, _CHUNK, device)
    addresses = table.addresses_of(_columns(call), device)
    lr = call.lr if isinstance(call.lr, torch.Tensor) else float(call.lr)
    _launch(
        len(table.chunks),
        addresses.numbers, table.sizes, table.chunks, corrections, lr, call.factor, call.found_inf,
        len(call.params), float(call.weight_decay), float(call.beta1), float(1.0 - call.beta1), float(call.beta2),
        float(1.0 - call.beta2), float(call.eps), bool(call.maximize), isinstance(lr, torch.Tensor),
        call.factor is not None, call.found_inf is not None, DTYPES[call.grads[0].dtype],
        DTYPES[call.copies[0].dtype] if call.copies else -1, addresses.aligned, table.even, _TILE, _TILES,
        warps=_WARPS,
    )  # fmt: skip
    if call.found_inf is not None:
        torch._foreach_sub_(list(call.steps), [call.found_inf] * len(call.steps))


def _columns(call: AdamwCall) -> tuple[Sequence[torch.Tensor], ...]:
    return (call.params, call.grads, call.exp_avgs, call.exp_avg_sqs, call.copies or call.params)


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
        p = load(param, offsets, inside, 0, ALIGNED)
        g = load(grad, offsets, inside, GRAD, ALIGNED)
        m = load(mean, offsets, inside, 0, ALIGNED)
        v = load(square, offsets, inside, 0, ALIGNED)
        if HAS_FACTOR:
            g = g * times
        if MAXIMIZE:
            g = -g
        m = m + rest1 * (g - m)
        v = beta2 * v + rest2 * g * g
        p = p * decay - step_size * m / (tl.sqrt(v) / root + eps)
        store(param, offsets, p, inside, 0, ALIGNED)
        store(mean, offsets, m, inside, 0, ALIGNED)
        store(square, offsets, v, inside, 0, ALIGNED)
        if COPY >= 0:
            store(tl.load(row + 4 * tensors), offsets, p, inside, COPY, ALIGNED)


_launch = Launcher(_adamw_kernel)
