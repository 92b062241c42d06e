"""Rotary embedding in Triton: x, with any strides, is read once and written once, including its unchanged part.

The result has the memory layout of x. Queries and keys are usually views of a projection, [B, S, N, D] in memory, and
attention and autograd copy tensors whose layout differs from the expected one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.rotary import RotaryCall
from ascend_adapt.kernels.triton_launch import Launcher

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_WIDEST = 4096
_ELEMENTS, _MOST_ELEMENTS = 2048, 4096
"""Elements of a tile: the usual number, and the maximum if one position has many heads."""


def supports(call: RotaryCall) -> str:
    """Return "" or why the Triton kernel does not support the call."""
    for name, tensor in (("x", call.x), ("key", call.key), ("cos", call.cos), ("sin", call.sin)):
        if tensor is not None and tensor.dtype not in _DTYPES:
            return f"it takes fp16, bf16 and fp32, {name} is {str(tensor.dtype).removeprefix('torch.')}"
    if call.cos.requires_grad or call.sin.requires_grad:
        return "it has no gradients for cos and sin"
    if call.x.dim() > 4:
        return f"it takes at most four axes, x has {call.x.dim()}"
    if call.x.shape[-1] > _WIDEST:
        return f"it takes rows of at most {_WIDEST} elements, not {call.x.shape[-1]}"
    return "" if all(each.numel() for each in call.tensors()) else "x is empty"


def run(call: RotaryCall) -> Any:
    """Return the rotated x, or (x, key)."""
    return _Rotary.apply(call.x, call.key, call.cos, call.sin, call.interleaved)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, key: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
    ) -> Any:
        ctx.interleaved = interleaved
        ctx.save_for_backward(cos, sin)
        turned = _turned([x] if key is None else [x, key], cos, sin, interleaved, back=False)
        return turned[0] if key is None else tuple(turned)

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        turned = _turned(list(grads), cos, sin, ctx.interleaved, back=True)
        return turned[0], turned[1] if len(turned) > 1 else None, None, None, None


def _turned(
    tensors: list[torch.Tensor], cos: torch.Tensor, sin: torch.Tensor, interleaved: bool, *, back: bool
) -> list[torch.Tensor]:
    """Return each tensor [..., D] rotated, in its layout; with ``back``, rotated by the transposed matrices."""
    tensors = [each if each.stride()[-1] == 1 else each.contiguous() for each in tensors]
    if cos.stride()[-1] != 1 or cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    results = [torch.empty_like(each) for each in tensors]
    (x, y), (key, turned_key) = (tensors[0], results[0]), (tensors[-1], results[-1])
    layouts = (x.shape, x.stride(), y.stride()), (key.shape, key.stride(), turned_key.stride())
    plan = _plan(layouts[: len(tensors)], cos.shape, cos.stride(), interleaved, back)
    if plan is None:
        return [_turned([each], cos, sin, interleaved, back=back)[0] for each in tensors]
    _launch(plan.programs, x, key, cos, sin, y, turned_key, sizes=plan.sizes, warps=plan.warps)
    return results


@dataclass(frozen=True)
class _Plan:
    programs: int
    sizes: tuple[int, ...]
    warps: int


@functools.lru_cache(maxsize=256)
def _plan(
    layouts: tuple[tuple[tuple[int, ...], ...], ...],
    shape: tuple[int, ...],
    strides_of_angles: tuple[int, ...],
    interleaved: bool,
    back: bool,
) -> _Plan | None:
    """Return the launch for tensors of these layouts, or None if one launch cannot rotate both.

    A layout is the shape of a tensor, its strides, and those of the result.
    """
    of_x, width, pairs = layouts[0][0], layouts[0][0][-1], shape[-1] // 2
    lead = (1,) * (4 - len(of_x))
    missing = (1,) * (len(of_x) - len(shape))
    expanded = zip(of_x[:-1], (*missing, *shape[:-1]), (*missing, *strides_of_angles[:-1]), strict=True)
    angles = lead + tuple(stride if size == whole else 0 for whole, size, stride in expanded)
    strides = lead + layouts[0][1]
    # A tile has the heads of a position, which share its angles. A program has neighbours in memory.
    heads = min(range(3), key=lambda axis: (angles[axis] != 0, strides[axis]))
    order = [*sorted({0, 1, 2} - {heads}, key=lambda axis: -strides[axis]), heads]
    shapes = [lead + each[0] for each in layouts]
    if any(shapes[0][axis] != shapes[-1][axis] for axis in order[:2]):
        return None
    outer, middle = (shapes[0][axis] for axis in order[:2])
    counts = [each[heads] for each in shapes]
    tiles = [max(1, min(_power(count), _MOST_ELEMENTS // _power(width))) for count in counts]
    positions = max(1, _ELEMENTS // (tiles[0] * _power(width)))
    of_tensors = [(lead + each)[axis] for _, *both in layouts for each in both for axis in order]
    rest = width - 2 * pairs
    sizes = (
        outer * middle, middle, counts[0], counts[-1], *of_tensors[:6], *of_tensors[-6:], *(angles[a] for a in order),
        interleaved, back, angles[heads] == 0, len(layouts) > 1, positions, tiles[0], tiles[-1],
        pairs, rest, _power(pairs), _power(rest),
    )  # fmt: skip
    warps = 8 if tiles[0] * positions * _power(width) > _ELEMENTS else 4
    return _Plan(-(-outer * middle // positions), sizes, warps)


def _power(size: int) -> int:
    """Return the next power of two, or 0 for 0."""
    return 1 << (size - 1).bit_length() if size else 0


@triton.jit
def _turn_heads(
    x, y, cos, sin, source, target, angle, here, heads, x_k, y_k, angle_k,
    INTERLEAVED: tl.constexpr, BACK: tl.constexpr, SHARED: tl.constexpr, HEADS: tl.constexpr,
    PAIRS: tl.constexpr, REST: tl.constexpr, PAIRS_TILE: tl.constexpr, REST_TILE: tl.constexpr,
):  # fmt: skip
    """Rotate the heads of some positions, given their offsets in memory, [positions, 1, 1]."""
    pair = tl.arange(0, PAIRS_TILE)[None, None, :]
    if INTERLEAVED:
        one = 2 * pair
        two = one + 1
    else:
        one = pair
        two = pair + PAIRS
    for first in tl.range(0, heads, HEADS):
        k = first + tl.arange(0, HEADS)[None, :, None]
        inside = here & (k < heads)
        read = x + source + k.to(tl.int64) * x_k
        written = y + target + k.to(tl.int64) * y_k
        turns = inside & (pair < PAIRS)
        if SHARED:
            seen = here & (pair < PAIRS)
            place = angle
        else:
            seen = turns
            place = angle + k.to(tl.int64) * angle_k
        cos_a = tl.load(cos + place + one, mask=seen, other=0.0).to(tl.float32)
        cos_b = tl.load(cos + place + two, mask=seen, other=0.0).to(tl.float32)
        sin_a = tl.load(sin + place + one, mask=seen, other=0.0).to(tl.float32)
        sin_b = tl.load(sin + place + two, mask=seen, other=0.0).to(tl.float32)
        a = tl.load(read + one, mask=turns, other=0.0).to(tl.float32)
        b = tl.load(read + two, mask=turns, other=0.0).to(tl.float32)
        if BACK:
            turned_a = a * cos_a + b * sin_b
            turned_b = b * cos_b - a * sin_a
        else:
            turned_a = a * cos_a - b * sin_a
            turned_b = b * cos_b + a * sin_b
        tl.store(written + one, turned_a.to(y.dtype.element_ty), mask=turns)
        tl.store(written + two, turned_b.to(y.dtype.element_ty), mask=turns)
        if REST > 0:
            column = tl.arange(0, REST_TILE)[None, None, :]
            passes = inside & (column < REST)
            column += 2 * PAIRS
            tl.store(written + column, tl.load(read + column, mask=passes), mask=passes)


@triton.jit
def _turn_kernel(
    x, key, cos, sin, y, turned_key, positions, middle, heads, key_heads,
    x_i, x_j, x_k, y_i, y_j, y_k, key_i, key_j, key_k, turned_i, turned_j, turned_k, angle_i, angle_j, angle_k,
    INTERLEAVED: tl.constexpr, BACK: tl.constexpr, SHARED: tl.constexpr, KEY: tl.constexpr, POSITIONS: tl.constexpr,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
    PAIRS_TILE: tl.constexpr, REST_TILE: tl.constexpr,
):  # fmt: skip
    """Rotate PAIRS pairs of every head of some positions (i, j), and copy the REST of a head after them.

    ``SHARED``: all heads of a position have the same angles. PAIRS and REST are constants, so that Triton knows that
        the rest is aligned for vectorized loads.
    """
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)[:, None, None]
    i = (position // middle).to(tl.int64)
    j = (position % middle).to(tl.int64)
    here = position < positions
    angle = i * angle_i + j * angle_j
    _turn_heads(
        x, y, cos, sin, i * x_i + j * x_j, i * y_i + j * y_j, angle, here, heads, x_k, y_k, angle_k,
        INTERLEAVED, BACK, SHARED, HEADS, PAIRS, REST, PAIRS_TILE, REST_TILE,
    )  # fmt: skip
    if KEY:
        _turn_heads(
            key, turned_key, cos, sin, i * key_i + j * key_j, i * turned_i + j * turned_j, angle, here, key_heads,
            key_k, turned_k, angle_k, INTERLEAVED, BACK, SHARED, KEY_HEADS, PAIRS, REST, PAIRS_TILE, REST_TILE,
        )  # fmt: skip


_launch = Launcher(_turn_kernel)
