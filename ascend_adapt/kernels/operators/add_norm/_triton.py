"""add_norm in Triton: forward reads x and the branch once, and backward reads the sum and both gradients once.

The norm is computed from the rounded sum in memory, which backward reads again.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels import triton_dropout
from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.add_norm import AddNormCall
from ascend_adapt.kernels.partial_sums import sum_over_programs
from ascend_adapt.kernels.tiles import WIDEST, Tiles, persistent_programs, stages, tiles
from ascend_adapt.kernels.triton_launch import Launcher

# Elements per thread, rows per tile, and warps per multiprocessor. In backward also the maximum width of tiles with
# several rows, and programs per multiprocessor. Tuned on an H200 at widths 1024, 2048, 4096 and 6144.
_OF_THREAD, _ROWS, _WARPS, _ROWS_UP_TO, _PER_PROCESSOR = 32, 2, 64, 4096, 4
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_keep_mask = triton_dropout.keep_mask


def supports(call: AddNormCall) -> str:
    """Return "" or why the Triton kernels do not support the call."""
    if call.x.dtype not in _DTYPES:
        return f"it takes fp16, bf16 and fp32, not {str(call.x.dtype).removeprefix('torch.')}"
    if not 0 < call.x.shape[-1] <= WIDEST:
        return f"it takes rows of 1 to {WIDEST} elements, not {call.x.shape[-1]}"
    if call.x.numel() == 0:
        return "x has no rows"
    return triton_dropout.unfit(call.dropout_p, call.x.numel())


def run(call: AddNormCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum and its norm."""
    result: tuple[torch.Tensor, torch.Tensor] = _AddNorm.apply(
        call.x, call.branch, call.branch_bias, call.weight, call.bias, call.eps, call.rms, call.dropout_p, call.seed
    )
    return result


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        branch: torch.Tensor,
        branch_bias: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
        rms: bool,
        dropout_p: float,
        seed: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, branch, weight = x.contiguous(), branch.contiguous(), weight.contiguous()
        branch_bias = None if branch_bias is None else branch_bias.contiguous()
        bias = None if bias is None else bias.contiguous()
        columns = x.shape[-1]
        rows, cut = x.numel() // columns, _cut(columns, 5, WIDEST)
        total, norm = torch.empty_like(x), torch.empty_like(x)
        statistics = torch.empty(1 if rms else 2, rows, dtype=torch.float32, device=x.device)
        _launch_forward(
            persistent_programs(rows, cut, _WARPS // cut.warps, x.device),
            x, branch, branch_bias, weight, bias, total, norm, statistics, seed, rows, columns, float(eps),
            *triton_dropout.dropped_and_scale(dropout_p), not rms, branch_bias is not None, bias is not None,
            dropout_p > 0, cut.rows, cut.width, stages(cut, x, branch), warps=cut.warps,
        )  # fmt: skip
        ctx.rms, ctx.dropout_p = rms, dropout_p
        ctx.dtypes = branch_bias is not None and branch_bias.dtype, bias is not None and bias.dtype
        ctx.save_for_backward(total, weight, statistics, seed)
        ctx.set_materialize_grads(False)
        return total, norm

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        total, weight, statistics, seed = ctx.saved_tensors
        of_total, of_norm = (None if each is None else each.contiguous() for each in grads)
        if of_norm is None:
            of_norm = torch.zeros_like(total)
        columns = total.shape[-1]
        rows, cut = total.numel() // columns, _cut(columns, 6, _ROWS_UP_TO)
        # Each program sums the gradients of weight and biases over its rows. Adding these in order is deterministic.
        count = persistent_programs(rows, cut, _PER_PROCESSOR, total.device)
        dx = torch.empty_like(total)
        of_branch = torch.empty_like(total) if ctx.dropout_p else dx
        branch_dtype, bias_dtype = ctx.dtypes
        dtypes = [weight.dtype, *[dtype for dtype in ctx.dtypes if dtype]]
        sums = torch.empty(len(dtypes), count, columns, dtype=torch.float32, device=total.device)
        _launch_gradient(
            count,
            of_norm, of_total, total, weight, statistics, seed, dx, of_branch, sums, rows, columns,
            *triton_dropout.dropped_and_scale(ctx.dropout_p), not ctx.rms, of_total is not None, bool(branch_dtype),
            bool(bias_dtype), ctx.dropout_p > 0, cut.rows, cut.width, stages(cut, of_norm, total, total),
            warps=cut.warps,
        )  # fmt: skip
        of_weight, *others = sum_over_programs(sums, dtypes)
        of_bias = others.pop() if bias_dtype else None
        of_branch_bias = others.pop() if branch_dtype else None
        return dx, of_branch, of_branch_bias, of_weight, of_bias, None, None, None, None


@functools.lru_cache(maxsize=256)
def _cut(columns: int, live: int, rows_up_to: int) -> Tiles:
    """Return tiles of a few rows, so that loads of several rows are in flight while one row is summed."""
    cut = tiles(max(columns, 8), live=live)
    rows = cut.rows * (_ROWS if cut.width <= rows_up_to else 1)
    return replace(cut, rows=rows, warps=min(16, max(2, rows * cut.width // (32 * _OF_THREAD))))


@triton.jit
def _add_norm_kernel(
    x, branch, branch_bias, weight, bias, total, norm, statistics, seed, rows, columns, eps, dropped, kept_scale,
    CENTRED: tl.constexpr, BRANCH_BIAS: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, TILE)[None, :]
    inside = column < columns
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if BRANCH_BIAS:
        added = tl.load(branch_bias + column, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    if DROPOUT:
        key = tl.load(seed)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)[:, None]
        place, here = row.to(tl.int64) * columns + column, inside & (row < rows)
        values = tl.load(branch + place, mask=here, other=0.0).to(tl.float32)
        if BRANCH_BIAS:
            values += added
        if DROPOUT:
            kept = _keep_mask(key, row, 0, columns, dropped, ROWS, TILE)
            values = tl.where(kept, values * kept_scale, 0.0)
        values += tl.load(x + place, mask=here, other=0.0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + place, rounded, mask=here)
        values = tl.where(here, rounded.to(tl.float32), 0.0)
        if CENTRED:
            centre = tl.sum(values, 1)[:, None] / columns
            values = tl.where(here, values - centre, 0.0)
            tl.store(statistics + rows + row, centre, mask=row < rows)
        factor = 1.0 / tl.sqrt(tl.sum(values * values, 1)[:, None] / columns + eps)
        tl.store(statistics + row, factor, mask=row < rows)
        result = values * factor * w
        if BIAS:
            result += b
        tl.store(norm + place, result.to(norm.dtype.element_ty), mask=here)


@triton.jit
def _add_norm_gradient_kernel(
    of_norm, of_total, total, weight, statistics, seed, dx, of_branch, sums, rows, columns, dropped, kept_scale,
    CENTRED: tl.constexpr, OF_TOTAL: tl.constexpr, BRANCH_BIAS: tl.constexpr, BIAS: tl.constexpr,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, TILE)[None, :]
    inside = column < columns
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    sum_w = tl.zeros((ROWS, TILE), tl.float32)
    if BIAS:
        sum_b = tl.zeros((ROWS, TILE), tl.float32)
    if BRANCH_BIAS:
        sum_d = tl.zeros((ROWS, TILE), tl.float32)
    if DROPOUT:
        key = tl.load(seed)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)[:, None]
        place, here = row.to(tl.int64) * columns + column, inside & (row < rows)
        values = tl.load(total + place, mask=here, other=0.0).to(tl.float32)
        g = tl.load(of_norm + place, mask=here, other=0.0).to(tl.float32)
        factor = tl.load(statistics + row, mask=row < rows, other=0.0)
        if CENTRED:
            values = tl.where(here, values - tl.load(statistics + rows + row, mask=row < rows, other=0.0), 0.0)
        normal = values * factor
        weighted = g * w
        d = weighted - normal * (tl.sum(weighted * normal, 1)[:, None] / columns)
        if CENTRED:
            d -= tl.sum(weighted, 1)[:, None] / columns
        d = d * factor
        if OF_TOTAL:
            d += tl.load(of_total + place, mask=here, other=0.0).to(tl.float32)
        d = tl.where(here, d, 0.0)
        tl.store(dx + place, d.to(dx.dtype.element_ty), mask=here)
        sum_w += g * normal
        if BIAS:
            sum_b += g
        if DROPOUT:
            kept = _keep_mask(key, row, 0, columns, dropped, ROWS, TILE)
            d = tl.where(kept, d * kept_scale, 0.0)
            tl.store(of_branch + place, d.to(of_branch.dtype.element_ty), mask=here)
        if BRANCH_BIAS:
            sum_d += d
    place = sums + tl.program_id(0) * columns + column
    step = tl.num_programs(0) * columns
    tl.store(place, tl.sum(sum_w, 0)[None, :], mask=inside)
    if BRANCH_BIAS:
        place += step
        tl.store(place, tl.sum(sum_d, 0)[None, :], mask=inside)
    if BIAS:
        tl.store(place + step, tl.sum(sum_b, 0)[None, :], mask=inside)


_launch_forward, _launch_gradient = Launcher(_add_norm_kernel), Launcher(_add_norm_gradient_kernel)
