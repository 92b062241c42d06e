"""Rotary embedding in Triton: x, with any strides, is read once and written once, including its unchanged part."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.rotary import RotaryCall
from ascend_adapt.kernels.tiles import programs, tiles
from ascend_adapt.kernels.triton_launch import Launcher

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_WIDEST = 4096


def supports(call: RotaryCall) -> str:
    """Return "" or why the Triton kernel does not support the call."""
    for name, tensor in (("x", call.x), ("cos", call.cos), ("sin", call.sin)):
        if tensor.dtype not in _DTYPES:
            return f"it takes fp16, bf16 and fp32, {name} is {str(tensor.dtype).removeprefix('torch.')}"
    if call.cos.requires_grad or call.sin.requires_grad:
        return "it has no gradients for cos and sin"
    if call.x.dim() > 4:
        return f"it takes at most four axes, x has {call.x.dim()}"
    if call.x.shape[-1] > _WIDEST:
        return f"it takes rows of at most {_WIDEST} elements, not {call.x.shape[-1]}"
    return "" if call.x.numel() else "x is empty"


def run(call: RotaryCall) -> torch.Tensor:
    """Return the rotated tensor."""
    result: torch.Tensor = _Rotary.apply(call.x, call.cos, call.sin, call.interleaved)
    return result


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
        ctx.interleaved = interleaved
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, interleaved, back=False)

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(grads[0], cos, sin, ctx.interleaved, back=True), None, None, None


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool, *, back: bool) -> torch.Tensor:
    """Return x rotated, or with ``back`` rotated by the transposed matrices, [..., D], contiguous."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    if cos.stride(-1) != 1 or cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    lead, pairs = (1,) * (4 - x.dim()), cos.shape[-1] // 2
    rest = x.shape[-1] - 2 * pairs
    angles = lead + cos.expand(*x.shape[:-1], 2 * pairs).stride()
    # The axes that share cos and sin come last, so that a program reads few of them for its rows.
    order = sorted(range(3), key=lambda axis: angles[axis] == 0)
    sizes, *strides = (
        [each[axis] for axis in order] for each in (lead + x.shape, lead + x.stride(), lead + y.stride(), angles)
    )
    rows, cut = x.numel() // x.shape[-1], tiles(max(pairs, rest), live=8, widest=_WIDEST)
    _launch(
        programs(rows, cut, x.device.type),
        x, cos, sin, y, rows, pairs, rest, *sizes[1:], *strides[0], *strides[1], *strides[2],
        interleaved, back, cut.rows, _power(pairs), _power(rest), warps=max(4, cut.warps),
    )  # fmt: skip
    return y


def _power(size: int) -> int:
    """Return the next power of two, or 0 for 0."""
    return 1 << (size - 1).bit_length() if size else 0


@triton.jit
def _turn_kernel(
    x, cos, sin, y, rows, pairs, rest, middle, inner, x_i, x_j, x_k, y_i, y_j, y_k, angle_i, angle_j, angle_k,
    INTERLEAVED: tl.constexpr, BACK: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Rotate ``pairs`` pairs of each of ``rows`` rows, (i, j, k) of three axes, and copy the ``rest`` after them."""
    pair = tl.arange(0, PAIRS)[None, :]
    if INTERLEAVED:
        one = 2 * pair
        other = one + 1
    else:
        one = pair
        other = pair + pairs
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        k = (row % inner).to(tl.int64)
        j = ((row // inner) % middle).to(tl.int64)
        i = (row // (inner * middle)).to(tl.int64)
        here = (pair < pairs) & (row < rows)
        source = x + i * x_i + j * x_j + k * x_k
        target = y + i * y_i + j * y_j + k * y_k
        angle = i * angle_i + j * angle_j + k * angle_k
        a = tl.load(source + one, mask=here, other=0.0).to(tl.float32)
        b = tl.load(source + other, mask=here, other=0.0).to(tl.float32)
        cos_a = tl.load(cos + angle + one, mask=here, other=0.0).to(tl.float32)
        cos_b = tl.load(cos + angle + other, mask=here, other=0.0).to(tl.float32)
        sin_a = tl.load(sin + angle + one, mask=here, other=0.0).to(tl.float32)
        sin_b = tl.load(sin + angle + other, mask=here, other=0.0).to(tl.float32)
        if BACK:
            turned_a = a * cos_a + b * sin_b
            turned_b = b * cos_b - a * sin_a
        else:
            turned_a = a * cos_a - b * sin_a
            turned_b = b * cos_b + a * sin_b
        tl.store(target + one, turned_a.to(y.dtype.element_ty), mask=here)
        tl.store(target + other, turned_b.to(y.dtype.element_ty), mask=here)
        if REST > 0:
            column = tl.arange(0, REST)[None, :]
            passed = (column < rest) & (row < rows)
            column += 2 * pairs
            tl.store(target + column, tl.load(source + column, mask=passed), mask=passed)


_launch = Launcher(_turn_kernel)
