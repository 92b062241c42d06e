"""Rotary embedding with torch_npu's npu_rotary_mul, within its documented limits (without JIT compilation)."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch

from ascend_adapt.kernels import npu
from ascend_adapt.kernels.operators.rotary import RotaryCall
from ascend_adapt.kernels.operators.rotary._reference import turning, with_the_rest
from ascend_adapt.npu_limits import rotary as limits

ROTARY_MUL = npu.Operator(
    "npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half', Tensor? rotate=None) -> Tensor",
    ("self", "r1", "r2", "rotary_mode"),
)


def supports(call: RotaryCall) -> str:
    """Return "" or the documented limit that the call exceeds."""
    return next(filter(None, map(_unmet, call.each())), "")


def _unmet(call: RotaryCall) -> str:
    if reason := npu.dtype_reason(call.x, call.cos, call.sin):
        return reason
    if call.x.dim() != 4:
        return f"x {list(call.x.shape)} does not have 4 axes"
    if call.cos.requires_grad or call.sin.requires_grad:
        return "its gradients of cos and sin have stricter limits"
    found = f"x is {list(call.x.shape)}, cos is {list(call.cos.shape)}"
    batch, heads = _batch_and_heads(call)
    counts = (batch * heads,) if call.interleaved else (batch, heads)
    return (
        limits.HEAD_SIZE.unmet(call.cos.shape[-1] in limits.WIDTHS, found)
        or limits.BROADCAST.unmet(_axes(call) in _allowed_axes(_mode(call)), found)
        or limits.BATCH_AND_HEADS.unmet(all(count in limits.COUNTS for count in counts), found)
        or ROTARY_MUL.difference()
    )


@functools.cache
def _allowed_axes(mode: str) -> frozenset[tuple[int, ...]]:
    """Return which of x's first three axes cos may have, over all layouts: 11SD, B1SD, BNSD, 1S1D, ..."""
    pairs = itertools.product(limits.LAYOUTS[4], limits.SPANS[4, mode])
    return frozenset(tuple(int(name in span) for name in layout[:-1]) for layout, span in pairs)


def _mode(call: RotaryCall) -> str:
    return "interleave" if call.interleaved else "half"


def _axes(call: RotaryCall) -> tuple[int, ...]:
    """Return which of the first three axes of x cos has, where an axis of size 1 counts as missing."""
    shape = (1,) * (4 - call.cos.dim()) + tuple(call.cos.shape)
    return tuple(int(size > 1) for size in shape[:3])


def _batch_and_heads(call: RotaryCall) -> tuple[int, int]:
    """Return x's leading sizes except that of positions, which is the only axis of cos, or else the longest."""
    axes, sizes = _axes(call), call.x.shape[:3]
    positions = axes.index(1) if sum(axes) == 1 else list(sizes).index(max(sizes))
    batch, heads = (size for axis, size in enumerate(sizes) if axis != positions)
    return batch, heads


def run(call: RotaryCall) -> Any:
    """Return the rotated x, or (x, key)."""
    return _one(call.x, call) if call.key is None else (_one(call.x, call), _one(call.key, call))


def _one(x: torch.Tensor, call: RotaryCall) -> torch.Tensor:
    cos, sin = (each[(None,) * (4 - each.dim())].contiguous() for each in (call.cos, call.sin))
    return with_the_rest(ROTARY_MUL(turning(x, call).contiguous(), cos, sin, _mode(call)), x)
