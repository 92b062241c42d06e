"""Rotary embedding in Triton: x, with any strides, is read once and written once, including its unchanged part.

The result has the memory layout of x. Queries and keys are usually views of a projection, [B, S, N, D] in memory, and
attention and autograd copy what has another layout than they expect.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.rotary import RotaryCall
from ascend_adapt.kernels.triton_launch import Launcher

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_WIDEST = 4096
_ELEMENTS, _WARPS = 1024, 4
"""Pairs of a tile, and the warps that share it."""


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
    """Return x rotated, or with ``back`` rotated by the transposed matrices, [..., D], in the layout of x."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    if cos.stride(-1) != 1 or cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    y = torch.empty_like(x)
    lead, pairs = (1,) * (4 - x.dim()), cos.shape[-1] // 2
    rest = x.shape[-1] - 2 * pairs
    angles = lead + cos.expand(*x.shape[:-1], 2 * pairs).stride()
    # An axis that shares cos and sin comes last, usually that of the heads, so that a tile reads them once for it.
    order = sorted(range(3), key=lambda axis: angles[axis] == 0)
    sizes, *strides = (
        [each[axis] for axis in order] for each in (lead + x.shape, lead + x.stride(), lead + y.stride(), angles)
    )
    positions, heads = sizes[0] * sizes[1], min(_power(sizes[2]), max(1, _ELEMENTS // _power(pairs)))
    taken = max(1, _ELEMENTS // (heads * _power(max(pairs, rest))))
    _launch(
        -(-positions // taken),
        x, cos, sin, y, positions, pairs, rest, *sizes[1:], *strides[0], *strides[1], *strides[2],
        interleaved, back, strides[2][2] == 0, taken, heads, _power(pairs), _power(rest), warps=_WARPS,
    )  # fmt: skip
    return y


def _power(size: int) -> int:
    """Return the next power of two, or 0 for 0."""
    return 1 << (size - 1).bit_length() if size else 0


@triton.jit
def _turn_kernel(
    x, cos, sin, y, positions, pairs, rest, middle, heads,
    x_i, x_j, x_k, y_i, y_j, y_k, angle_i, angle_j, angle_k,
    INTERLEAVED: tl.constexpr, BACK: tl.constexpr, SHARED: tl.constexpr,
    POSITIONS: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Rotate ``pairs`` pairs of each head of some positions (i, j), and copy the ``rest`` after them.

    ``SHARED``: all heads of a position have the same angles.
    """
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)[:, None, None]
    i = (position // middle).to(tl.int64)
    j = (position % middle).to(tl.int64)
    pair = tl.arange(0, PAIRS)[None, None, :]
    if INTERLEAVED:
        one = 2 * pair
        other = one + 1
    else:
        one = pair
        other = pair + pairs
    here = (position < positions) & (pair < pairs)
    source = x + i * x_i + j * x_j
    target = y + i * y_i + j * y_j
    angle = i * angle_i + j * angle_j
    if SHARED:
        cos_a = tl.load(cos + angle + one, mask=here, other=0.0).to(tl.float32)
        cos_b = tl.load(cos + angle + other, mask=here, other=0.0).to(tl.float32)
        sin_a = tl.load(sin + angle + one, mask=here, other=0.0).to(tl.float32)
        sin_b = tl.load(sin + angle + other, mask=here, other=0.0).to(tl.float32)
    for first in tl.range(0, heads, HEADS):
        k = first + tl.arange(0, HEADS)[None, :, None]
        turned = here & (k < heads)
        if not SHARED:
            mine = angle + k.to(tl.int64) * angle_k
            cos_a = tl.load(cos + mine + one, mask=turned, other=0.0).to(tl.float32)
            cos_b = tl.load(cos + mine + other, mask=turned, other=0.0).to(tl.float32)
            sin_a = tl.load(sin + mine + one, mask=turned, other=0.0).to(tl.float32)
            sin_b = tl.load(sin + mine + other, mask=turned, other=0.0).to(tl.float32)
        read = source + k.to(tl.int64) * x_k
        written = target + k.to(tl.int64) * y_k
        a = tl.load(read + one, mask=turned, other=0.0).to(tl.float32)
        b = tl.load(read + other, mask=turned, other=0.0).to(tl.float32)
        if BACK:
            turned_a = a * cos_a + b * sin_b
            turned_b = b * cos_b - a * sin_a
        else:
            turned_a = a * cos_a - b * sin_a
            turned_b = b * cos_b + a * sin_b
        tl.store(written + one, turned_a.to(y.dtype.element_ty), mask=turned)
        tl.store(written + other, turned_b.to(y.dtype.element_ty), mask=turned)
        if REST > 0:
            column = tl.arange(0, REST)[None, None, :]
            passed = (position < positions) & (k < heads) & (column < rest)
            column += 2 * pairs
            tl.store(written + column, tl.load(read + column, mask=passed), mask=passed)


_launch = Launcher(_turn_kernel)
