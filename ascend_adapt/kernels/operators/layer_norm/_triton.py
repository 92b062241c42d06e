"""Layer norm and RMS norm in Triton: forward reads x once, and backward reads x and the gradient once."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.layer_norm import LayerNormCall
from ascend_adapt.kernels.partial_sums import sum_over_programs
from ascend_adapt.kernels.tiles import WIDEST, Tiles, persistent_programs, stages, tiles
from ascend_adapt.kernels.triton_launch import Launcher

# Warps per multiprocessor. In backward also elements of a row per warp, and the maximum number of programs per
# multiprocessor. Tuned on an H200 at widths 1024, 2048, 4096 and 6144.
_WARPS, _OF_WARP, _MOST = 64, 512, 8


def supports(call: Any) -> str:
    """Return "" or why the Triton kernels do not support the call of layer_norm or rms_norm."""
    if call.x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it takes fp16, bf16 and fp32, not {str(call.x.dtype).removeprefix('torch.')}"
    if not 0 < call.x.shape[-1] <= WIDEST:
        return f"it takes rows of 1 to {WIDEST} elements, not {call.x.shape[-1]}"
    if call.x.numel() == 0:
        return "x has no rows"
    if call.weight is None:
        return "it requires a weight"
    return ""


def run(call: LayerNormCall) -> torch.Tensor:
    """Return the normalised tensor."""
    return normalise(call.x, call.weight, call.bias, call.eps, centred=True)


def normalise(x: torch.Tensor, weight: torch.Tensor, bias: Any, eps: float, *, centred: bool) -> torch.Tensor:
    """Return x, minus its mean if ``centred``, divided by its root mean square, times weight, plus bias; [..., D]."""
    result: torch.Tensor = _Norm.apply(x, weight, bias, eps, centred)
    return result


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, centred: bool
    ) -> torch.Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        bias = None if bias is None else bias.contiguous()
        columns = x.shape[-1]
        rows, cut = x.numel() // columns, tiles(columns, live=4)
        y = torch.empty_like(x)
        statistics = torch.empty(1 + centred, rows, dtype=torch.float32, device=x.device)
        _launch_forward(
            persistent_programs(rows, cut, _WARPS // cut.warps, x.device),
            x, weight, bias, y, statistics, rows, columns, float(eps),
            centred, bias is not None, cut.rows, cut.width, stages(cut, x), warps=cut.warps,
        )  # fmt: skip
        ctx.centred, ctx.has_bias = centred, bias is not None
        ctx.save_for_backward(x, weight, statistics)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, weight, statistics = ctx.saved_tensors
        grad = grads[0].contiguous()
        columns = x.shape[-1]
        rows, cut = x.numel() // columns, _cut_of_gradient(columns)
        # Each program sums the weight's gradient over its rows. Adding these sums in order is deterministic.
        count = persistent_programs(rows, cut, min(_MOST, _WARPS // 2 // cut.warps), x.device)
        dx = torch.empty_like(x)
        sums = torch.empty(1 + ctx.has_bias, count, columns, dtype=torch.float32, device=x.device)
        _launch_gradient(
            count,
            grad, x, weight, statistics, dx, sums, rows, columns,
            ctx.centred, ctx.has_bias, cut.rows, cut.width, stages(cut, x, grad), warps=cut.warps,
        )  # fmt: skip
        of_weight, *of_bias = sum_over_programs(sums, [weight.dtype] * len(sums))
        return dx, of_weight, of_bias[0] if of_bias else None, None, None


@functools.lru_cache(maxsize=256)
def _cut_of_gradient(columns: int) -> Tiles:
    cut = tiles(columns, live=6)
    return replace(cut, warps=max(cut.warps, cut.width // _OF_WARP))


@triton.jit
def _forward_kernel(
    x, weight, bias, y, statistics, rows, columns, eps,
    CENTRED: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, TILE)[None, :]
    inside = column < columns
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)[:, None]
        start, here = row.to(tl.int64) * columns, inside & (row < rows)
        values = tl.load(x + start + column, mask=here, other=0.0).to(tl.float32)
        if CENTRED:
            centre = tl.sum(values, 1)[:, None] / columns
            values = tl.where(here, values - centre, 0.0)
            tl.store(statistics + rows + row, centre, mask=row < rows)
        factor = 1.0 / tl.sqrt(tl.sum(values * values, 1)[:, None] / columns + eps)
        tl.store(statistics + row, factor, mask=row < rows)
        result = values * factor * w
        if BIAS:
            result += b
        tl.store(y + start + column, result.to(y.dtype.element_ty), mask=here)


@triton.jit
def _gradient_kernel(
    grad, x, weight, statistics, dx, sums, rows, columns,
    CENTRED: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, TILE)[None, :]
    inside = column < columns
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    sum_w = tl.zeros((ROWS, TILE), tl.float32)
    sum_b = tl.zeros((ROWS, TILE), tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)[:, None]
        start, here = row.to(tl.int64) * columns, inside & (row < rows)
        values = tl.load(x + start + column, mask=here, other=0.0).to(tl.float32)
        g = tl.load(grad + start + column, mask=here, other=0.0).to(tl.float32)
        factor = tl.load(statistics + row, mask=row < rows, other=0.0)
        if CENTRED:
            values = tl.where(here, values - tl.load(statistics + rows + row, mask=row < rows, other=0.0), 0.0)
        normal = values * factor
        weighted = g * w
        d = weighted - normal * (tl.sum(weighted * normal, 1)[:, None] / columns)
        if CENTRED:
            d -= tl.sum(weighted, 1)[:, None] / columns
        tl.store(dx + start + column, (d * factor).to(dx.dtype.element_ty), mask=here)
        sum_w += g * normal
        if BIAS:
            sum_b += g
    place = sums + tl.program_id(0) * columns + column
    tl.store(place, tl.sum(sum_w, 0)[None, :], mask=inside)
    if BIAS:
        tl.store(place + tl.num_programs(0) * columns, tl.sum(sum_b, 0)[None, :], mask=inside)


_launch_forward, _launch_gradient = Launcher(_forward_kernel), Launcher(_gradient_kernel)
