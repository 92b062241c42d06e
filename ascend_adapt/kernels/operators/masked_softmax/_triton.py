"""Masked softmax in Triton: each score is read once, each probability is written once, and masked scores are not read.

The kernels also compile for Ascend: they use a 1-D grid of programs that loop over rows, tiles for rows wider than the
on-chip memory, and no shared memory, barriers or atomics.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.masked_softmax import EXACT, FINITE_ZEROED, MaskedSoftmaxCall
from ascend_adapt.kernels.tiles import programs, tiles
from ascend_adapt.kernels.triton_launch import Launcher

_EXACT, _FINITE, _FINITE_ZEROED = 0, 1, 2


def supports(call: MaskedSoftmaxCall) -> str:
    """Return "" or why the Triton kernels do not support the call."""
    x = call.x
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it takes fp16, bf16 and fp32, not {str(x.dtype).removeprefix('torch.')}"
    if x.dim() > 4:
        return f"it takes at most four axes, the scores have {x.dim()}"
    if x.numel() == 0:
        return "x has no scores"
    if isinstance(call.scale, torch.Tensor) and (call.scale.device.type != "cpu" or call.scale.requires_grad):
        return "scale is a tensor on the device, or requires grad"
    return ""


def run(call: MaskedSoftmaxCall) -> torch.Tensor:
    """Return the probabilities."""
    if not (call.x.requires_grad and torch.is_grad_enabled()):
        return _forward(call.x.contiguous(), call.masked_out, float(call.scale), call.causal, call.fill)
    probabilities: torch.Tensor = _MaskedSoftmax.apply(call.x, call)
    return probabilities


def gradient(grad: torch.Tensor, probabilities: torch.Tensor, scale: float, causal: bool = False) -> torch.Tensor:
    """Return the gradient of the scores, scale * p * (grad - sum(p * grad)), [..., Q, K]."""
    return _gradient(grad, probabilities, scale, causal, None)


class _MaskedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, call: MaskedSoftmaxCall) -> torch.Tensor:
        ctx.scale, ctx.causal = float(call.scale), call.causal
        probabilities = _forward(x.contiguous(), call.masked_out, ctx.scale, call.causal, call.fill)
        # With a finite fill, masked-out entries of a fully masked row have a probability but no gradient.
        ctx.save_for_backward(probabilities, None if call.fill == EXACT else call.masked_out)
        return probabilities

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        probabilities, masked_out = ctx.saved_tensors
        return _gradient(grads[0], probabilities, ctx.scale, ctx.causal, masked_out), None


@functools.lru_cache(maxsize=1024)
def _cut(shape: torch.Size, on_cuda: bool) -> tuple[int, tuple[int, ...], tuple[int, int, bool], int]:
    """Return the number of programs, (rows, queries, keys, heads), (ROWS, TILE, ONE_TILE), and warps."""
    queries, keys, heads = shape[-2], shape[-1], shape[-3] if len(shape) > 2 else 1
    rows, cut = shape.numel() // keys, tiles(keys, live=4)
    return programs(rows, cut, on_cuda), (rows, queries, keys, heads), (cut.rows, cut.width, cut.count == 1), cut.warps


def _mask(masked_out: torch.Tensor | None, shape: torch.Size) -> tuple[torch.Tensor | None, tuple[int, ...]]:
    """Return a mask as uint8, and its strides over [B, N, Q, K], 0 where it broadcasts."""
    if masked_out is None:
        return None, (0, 0, 0, 0)
    wide = masked_out.expand((1,) * (4 - len(shape)) + shape)
    return wide.view(torch.uint8), wide.stride()


def _forward(x: torch.Tensor, masked_out: Any, scale: float, causal: bool, fill: str) -> torch.Tensor:
    y, (mask, strides) = torch.empty_like(x), _mask(masked_out, x.shape)
    count, sizes, constants, warps = _cut(x.shape, x.is_cuda)
    kind = _EXACT if fill == EXACT else _FINITE_ZEROED if fill == FINITE_ZEROED else _FINITE
    _launch_forward(count, x, mask, y, scale, *sizes, *strides, causal, mask is not None, kind, *constants, warps=warps)
    return y


def _gradient(grad: torch.Tensor, y: torch.Tensor, scale: float, causal: bool, masked_out: Any) -> torch.Tensor:
    dx, (mask, strides) = torch.empty_like(y), _mask(masked_out, y.shape)
    count, sizes, constants, warps = _cut(y.shape, y.is_cuda)
    _launch_gradient(
        count, grad.contiguous(), y, mask, dx, float(scale), *sizes, *strides,
        causal, mask is not None, *constants, warps=warps,
    )  # fmt: skip
    return dx


@triton.jit
def _place(row, queries, heads, mask_b, mask_n, mask_q):
    """Return the offset of each row's mask."""
    query = row % queries
    head = (row // queries) % heads
    batch = row // (queries * heads)
    return batch.to(tl.int64) * mask_b + head.to(tl.int64) * mask_n + query.to(tl.int64) * mask_q


@triton.jit
def _scores(x, mask, start, hides, column, seen, scale, mask_k,
            MASKED: tl.constexpr, FILL: tl.constexpr):  # fmt: skip
    """Return the scaled scores, with minus infinity or the fill where they are masked."""
    if MASKED:
        hidden = tl.load(mask + hides + column * mask_k, mask=seen, other=0) != 0
        if FILL == 0:
            seen = seen & (hidden == 0)
    score = tl.load(x + start + column, mask=seen, other=-float("inf")).to(tl.float32) * scale
    if MASKED and FILL != 0:
        score = tl.where(hidden, -10000.0, score)
    return score


@triton.jit
def _forward_kernel(
    x, mask, y, scale, rows, queries, keys, heads, mask_b, mask_n, mask_q, mask_k,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, FILL: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, ONE_TILE: tl.constexpr,
):  # fmt: skip
    """Compute the softmax of ``rows`` rows of ``keys`` scores. A program's rows are the number of programs apart."""
    tile = tl.arange(0, TILE)[None, :]
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        hides = _place(row, queries, heads, mask_b, mask_n, mask_q)
        start = row.to(tl.int64) * keys
        end = tl.zeros((ROWS, 1), tl.int32) + keys
        if CAUSAL:
            end = tl.minimum(end, row % queries + keys - queries + 1)
        if ONE_TILE:
            score = _scores(x, mask, start, hides, tile, (tile < end) & (row < rows), scale, mask_k, MASKED, FILL)
            top = tl.max(score, 1)[:, None]
            shift = tl.where(top == -float("inf"), 0.0, top)
            power = tl.exp(score - shift)
            total = tl.sum(power, 1)[:, None]
            share = 1.0 / tl.where(total == 0.0, 1.0, total)
            if FILL == 2:
                share = tl.where(top == -10000.0, 0.0, share)
            tl.store(y + start + tile, (power * share).to(y.dtype.element_ty), mask=(tile < keys) & (row < rows))
        else:
            top = tl.zeros((ROWS, 1), tl.float32) - float("inf")
            total = tl.zeros((ROWS, 1), tl.float32)
            for at in range(0, keys, TILE):
                column = at + tile
                seen = (column < end) & (row < rows)
                score = _scores(x, mask, start, hides, column, seen, scale, mask_k, MASKED, FILL)
                higher = tl.maximum(top, tl.max(score, 1)[:, None])
                shift = tl.where(higher == -float("inf"), 0.0, higher)
                total = total * tl.exp(top - shift) + tl.sum(tl.exp(score - shift), 1)[:, None]
                top = higher
            shift = tl.where(top == -float("inf"), 0.0, top)
            share = 1.0 / tl.where(total == 0.0, 1.0, total)
            if FILL == 2:
                share = tl.where(top == -10000.0, 0.0, share)
            for at in range(0, keys, TILE):
                column = at + tile
                seen = (column < end) & (row < rows)
                score = _scores(x, mask, start, hides, column, seen, scale, mask_k, MASKED, FILL)
                power = tl.exp(score - shift) * share
                tl.store(y + start + column, power.to(y.dtype.element_ty), mask=(column < keys) & (row < rows))


@triton.jit
def _gradient_kernel(
    grad, y, mask, dx, scale, rows, queries, keys, heads, mask_b, mask_n, mask_q, mask_k,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, ONE_TILE: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the scores of ``rows`` rows. A program's rows are the number of programs apart."""
    tile = tl.arange(0, TILE)[None, :]
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        hides = _place(row, queries, heads, mask_b, mask_n, mask_q)
        start = row.to(tl.int64) * keys
        end = tl.zeros((ROWS, 1), tl.int32) + keys
        if CAUSAL:
            end = tl.minimum(end, row % queries + keys - queries + 1)
        if ONE_TILE:
            seen = (tile < end) & (row < rows)
            p = tl.load(y + start + tile, mask=seen, other=0.0).to(tl.float32)
            g = tl.load(grad + start + tile, mask=seen, other=0.0).to(tl.float32)
            d = p * (g - tl.sum(p * g, 1)[:, None]) * scale
            if MASKED:
                d = tl.where(tl.load(mask + hides + tile * mask_k, mask=seen, other=0) != 0, 0.0, d)
            tl.store(dx + start + tile, d.to(dx.dtype.element_ty), mask=(tile < keys) & (row < rows))
        else:
            inner = tl.zeros((ROWS, 1), tl.float32)
            for at in range(0, keys, TILE):
                seen = (at + tile < end) & (row < rows)
                p = tl.load(y + start + at + tile, mask=seen, other=0.0).to(tl.float32)
                g = tl.load(grad + start + at + tile, mask=seen, other=0.0).to(tl.float32)
                inner += tl.sum(p * g, 1)[:, None]
            for at in range(0, keys, TILE):
                column = at + tile
                seen = (column < end) & (row < rows)
                p = tl.load(y + start + column, mask=seen, other=0.0).to(tl.float32)
                g = tl.load(grad + start + column, mask=seen, other=0.0).to(tl.float32)
                d = p * (g - inner) * scale
                if MASKED:
                    d = tl.where(tl.load(mask + hides + column * mask_k, mask=seen, other=0) != 0, 0.0, d)
                tl.store(dx + start + column, d.to(dx.dtype.element_ty), mask=(column < keys) & (row < rows))


_launch_forward, _launch_gradient = Launcher(_forward_kernel), Launcher(_gradient_kernel)
