"""Layer norm and RMS norm in Triton: forward reads x once, and backward reads x and the gradient once."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.layer_norm import LayerNormCall
from ascend_adapt.kernels.partial_sums import added
from ascend_adapt.kernels.tiles import WIDEST, multiprocessors, programs, tiles
from ascend_adapt.kernels.triton_launch import Launcher


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
        mean, scale = torch.empty(2, rows, dtype=torch.float32, device=x.device)
        _launch_forward(
            programs(rows, cut, x.device.type),
            x, weight, bias, y, mean, scale, rows, columns, float(eps),
            centred, bias is not None, cut.rows, cut.width, warps=cut.warps,
        )  # fmt: skip
        ctx.centred, ctx.has_bias = centred, bias is not None
        ctx.save_for_backward(x, weight, mean, scale)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        grad = grads[0].contiguous()
        columns = x.shape[-1]
        rows, cut = x.numel() // columns, tiles(columns, live=6)
        # Each program sums the weight's gradient over its rows. Adding these sums in order is deterministic.
        count = min(programs(rows, cut, x.device.type), 8 * multiprocessors(x.device))
        dx = torch.empty_like(x)
        sums = torch.empty(1 + ctx.has_bias, count, columns, dtype=torch.float32, device=x.device)
        _launch_gradient(
            count,
            grad, x, weight, mean, scale, dx, sums, rows, columns,
            ctx.centred, ctx.has_bias, cut.rows, cut.width, warps=cut.warps,
        )  # fmt: skip
        of_weight, *of_bias = added(sums, [weight.dtype] * len(sums))
        return dx, of_weight, of_bias[0] if of_bias else None, None, None


@triton.jit
def _forward_kernel(
    x, weight, bias, y, mean, scale, rows, columns, eps,
    CENTRED: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, TILE)[None, :]
    inside = column < columns
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        start, here = row.to(tl.int64) * columns, inside & (row < rows)
        values = tl.load(x + start + column, mask=here, other=0.0).to(tl.float32)
        if CENTRED:
            centre = tl.sum(values, 1)[:, None] / columns
            values = tl.where(here, values - centre, 0.0)
            tl.store(mean + row, centre, mask=row < rows)
        factor = 1.0 / tl.sqrt(tl.sum(values * values, 1)[:, None] / columns + eps)
        tl.store(scale + row, factor, mask=row < rows)
        result = values * factor * w
        if BIAS:
            result += b
        tl.store(y + start + column, result.to(y.dtype.element_ty), mask=here)


@triton.jit
def _gradient_kernel(
    grad, x, weight, mean, scale, dx, sums, rows, columns,
    CENTRED: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, TILE)[None, :]
    inside = column < columns
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    sum_w = tl.zeros((ROWS, TILE), tl.float32)
    sum_b = tl.zeros((ROWS, TILE), tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        start, here = row.to(tl.int64) * columns, inside & (row < rows)
        values = tl.load(x + start + column, mask=here, other=0.0).to(tl.float32)
        g = tl.load(grad + start + column, mask=here, other=0.0).to(tl.float32)
        factor = tl.load(scale + row, mask=row < rows, other=0.0)
        if CENTRED:
            values = tl.where(here, values - tl.load(mean + row, mask=row < rows, other=0.0), 0.0)
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
