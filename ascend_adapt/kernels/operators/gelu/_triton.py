"""GELU of x + bias in Triton. The kernel that writes the gradient of x also sums the gradient of the bias."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.column_sums import Strips, strips
from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.gelu import GeluCall
from ascend_adapt.kernels.partial_sums import sum_over_programs
from ascend_adapt.kernels.triton_launch import Launcher

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def supports(call: GeluCall) -> str:
    """Return "" or why the Triton kernels do not support the call."""
    if call.bias is None:
        return "without a bias, torch's gelu is as fast"
    for name, tensor in (("x", call.x), ("bias", call.bias)):
        if tensor.dtype not in _DTYPES:
            return f"it takes fp16, bf16 and fp32, {name} is {str(tensor.dtype).removeprefix('torch.')}"
    return "" if call.x.numel() else "x is empty"


def run(call: GeluCall) -> torch.Tensor:
    """Return the GELU."""
    result: torch.Tensor = _Gelu.apply(call.x, call.bias, call.approximate == "tanh")
    return result


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor, approximate: bool) -> torch.Tensor:
        x, bias = x.contiguous(), bias.contiguous()
        columns = x.shape[-1]
        rows = x.numel() // columns
        cut, y = strips(rows, columns, x.device, per_processor=16), torch.empty_like(x)
        _launch_forward(cut.programs, x, bias, y, rows, columns, *_of(cut), approximate, warps=8)
        ctx.approximate = approximate
        ctx.save_for_backward(x, bias)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, bias = ctx.saved_tensors
        grad, dx = grads[0].contiguous(), torch.empty_like(x)
        columns = x.shape[-1]
        rows = x.numel() // columns
        cut = strips(rows, columns, x.device, per_processor=8)
        sums = torch.empty(1, cut.groups, columns, dtype=torch.float32, device=x.device)
        _launch_gradient(cut.programs, grad, x, bias, dx, sums, rows, columns, *_of(cut), ctx.approximate, warps=4)
        return dx, *sum_over_programs(sums, [bias.dtype]), None


def _of(cut: Strips) -> tuple[int, int, int]:
    return cut.groups, cut.rows, cut.width


@triton.jit
def _tanh(x):
    e = tl.exp(-2.0 * tl.abs(x))
    y = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -y, y)


@triton.jit
def _gelu_kernel(
    x, bias, y, rows, columns, GROUPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, TANH: tl.constexpr
):
    """Compute one strip of columns in the rows of one group: every GROUPS-th tile of ROWS rows."""
    column = (tl.program_id(0) // GROUPS) * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = column < columns
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    for first in tl.range((tl.program_id(0) % GROUPS) * ROWS, rows, GROUPS * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        place, here = row.to(tl.int64) * columns + column, inside & (row < rows)
        u = tl.load(x + place, mask=here, other=0.0).to(tl.float32) + b
        if TANH:
            # (1 + tanh(z)) / 2 = sigmoid(2 z), which takes fewer instructions.
            share = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * u * (1.0 + 0.044715 * u * u)))
        else:
            share = 0.5 * (1.0 + tl.erf(u * 0.7071067811865476))
        tl.store(y + place, (u * share).to(y.dtype.element_ty), mask=here)


@triton.jit
def _gelu_gradient_kernel(
    grad, x, bias, dx, sums, rows, columns,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, TANH: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of x, and its sum over the rows of the group."""
    group = tl.program_id(0) % GROUPS
    column = (tl.program_id(0) // GROUPS) * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = column < columns
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(group * ROWS, rows, GROUPS * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        place, here = row.to(tl.int64) * columns + column, inside & (row < rows)
        u = tl.load(x + place, mask=here, other=0.0).to(tl.float32) + b
        g = tl.load(grad + place, mask=here, other=0.0).to(tl.float32)
        if TANH:
            # In backward, the sigmoid was slower on an H200.
            inner = _tanh(0.7978845608028654 * (u + 0.044715 * u * u * u))
            slope = 0.7978845608028654 * (1.0 + 0.134145 * u * u)
            d = 0.5 * (1.0 + inner) + 0.5 * u * (1.0 - inner * inner) * slope
        else:
            d = 0.5 * (1.0 + tl.erf(u * 0.7071067811865476)) + u * 0.3989422804014327 * tl.exp(-0.5 * u * u)
        d = d * g
        tl.store(dx + place, d.to(dx.dtype.element_ty), mask=here)
        total += d
    place = group.to(tl.int64) * columns + column
    tl.store(sums + place, tl.sum(total, 0)[None, :], mask=inside)


_launch_forward, _launch_gradient = Launcher(_gelu_kernel), Launcher(_gelu_gradient_kernel)
