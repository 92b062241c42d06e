"""bias_dropout_add in Triton: forward reads x and the branch once; backward reads the gradient once."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels import triton_dropout
from ascend_adapt.kernels.column_sums import strips
from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.bias_dropout_add import BiasDropoutAddCall
from ascend_adapt.kernels.partial_sums import sum_over_programs
from ascend_adapt.kernels.triton_launch import Launcher

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_keep_mask = triton_dropout.keep_mask


def supports(call: BiasDropoutAddCall) -> str:
    """Return "" or why the Triton kernels do not support the call."""
    for name, tensor in (("x", call.x), ("bias", call.bias)):
        if tensor is not None and tensor.dtype not in _DTYPES:
            return f"it takes fp16, bf16 and fp32, {name} is {str(tensor.dtype).removeprefix('torch.')}"
    if call.x.numel() == 0:
        return "x is empty"
    return triton_dropout.unfit(call.dropout_p, call.x.numel())


def run(call: BiasDropoutAddCall) -> torch.Tensor:
    """Return the sum."""
    result: torch.Tensor = _BiasDropoutAdd.apply(call.x, call.branch, call.bias, call.dropout_p, call.seed)
    return result


class _BiasDropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, branch: torch.Tensor, bias: torch.Tensor | None, dropout_p: float, seed: Any
    ) -> torch.Tensor:
        x, branch = x.contiguous(), branch.contiguous()
        bias = None if bias is None else bias.contiguous()
        columns = x.shape[-1]
        rows = x.numel() // columns
        cut, y = strips(rows, columns, x.device, per_processor=16), torch.empty_like(x)
        _launch_forward(
            cut.programs, x, branch, bias, y, seed, rows, columns, *triton_dropout.dropped_and_scale(dropout_p),
            bias is not None, dropout_p > 0, cut.groups, cut.rows, cut.width, warps=8,
        )  # fmt: skip
        ctx.dropout_p, ctx.bias_dtype = dropout_p, None if bias is None else bias.dtype
        ctx.save_for_backward(seed)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        grad, (seed,) = grads[0].contiguous(), ctx.saved_tensors
        dropout, bias = ctx.dropout_p > 0, ctx.bias_dtype is not None
        columns = grad.shape[-1]
        rows = grad.numel() // columns
        of_branch = torch.empty_like(grad) if dropout else grad
        cut = strips(rows, columns, grad.device, per_processor=8)
        sums = torch.empty(1, cut.groups, columns, dtype=torch.float32, device=grad.device) if bias else None
        if dropout or bias:
            _launch_gradient(
                cut.programs, grad, of_branch, sums, seed, rows, columns,
                *triton_dropout.dropped_and_scale(ctx.dropout_p),
                bias, dropout, cut.groups, cut.rows, cut.width, warps=4,
            )  # fmt: skip
        of_bias = None if sums is None else sum_over_programs(sums, [ctx.bias_dtype])[0]
        return grad, of_branch, of_bias, None, None


@triton.jit
def _forward_kernel(
    x, branch, bias, y, seed, rows, columns, dropped, kept_scale,
    BIAS: tl.constexpr, DROPOUT: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute one strip of columns. A group takes every GROUPS-th tile of ROWS rows."""
    left = (tl.program_id(0) // GROUPS) * WIDTH
    column = left + tl.arange(0, WIDTH)[None, :]
    inside = column < columns
    if BIAS:
        b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    if DROPOUT:
        key = tl.load(seed)
    for first in tl.range((tl.program_id(0) % GROUPS) * ROWS, rows, GROUPS * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        place, here = row.to(tl.int64) * columns + column, inside & (row < rows)
        values = tl.load(branch + place, mask=here, other=0.0).to(tl.float32)
        if BIAS:
            values += b
        if DROPOUT:
            values = tl.where(_keep_mask(key, row, left, columns, dropped, ROWS, WIDTH), values * kept_scale, 0.0)
        values += tl.load(x + place, mask=here, other=0.0).to(tl.float32)
        tl.store(y + place, values.to(y.dtype.element_ty), mask=here)


@triton.jit
def _gradient_kernel(
    grad, of_branch, sums, seed, rows, columns, dropped, kept_scale,
    BIAS: tl.constexpr, DROPOUT: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the branch, and its sum over the rows of this group."""
    group = tl.program_id(0) % GROUPS
    left = (tl.program_id(0) // GROUPS) * WIDTH
    column = left + tl.arange(0, WIDTH)[None, :]
    inside = column < columns
    if BIAS:
        total = tl.zeros((ROWS, WIDTH), tl.float32)
    if DROPOUT:
        key = tl.load(seed)
    for first in tl.range(group * ROWS, rows, GROUPS * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        place, here = row.to(tl.int64) * columns + column, inside & (row < rows)
        d = tl.load(grad + place, mask=here, other=0.0).to(tl.float32)
        if DROPOUT:
            d = tl.where(_keep_mask(key, row, left, columns, dropped, ROWS, WIDTH), d * kept_scale, 0.0)
            tl.store(of_branch + place, d.to(of_branch.dtype.element_ty), mask=here)
        if BIAS:
            total += d
    if BIAS:
        place = group.to(tl.int64) * columns + column
        tl.store(sums + place, tl.sum(total, 0)[None, :], mask=inside)


_launch_forward, _launch_gradient = Launcher(_forward_kernel), Launcher(_gradient_kernel)
