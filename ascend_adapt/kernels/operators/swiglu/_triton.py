"""SwiGLU in Triton: both halves are read in place, and their gradients are written into one tensor."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.swiglu import SwigluCall
from ascend_adapt.kernels.partial_sums import sum_over_programs
from ascend_adapt.kernels.tiles import Tiles, multiprocessors, programs, tiles
from ascend_adapt.kernels.triton_launch import Launcher

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def supports(call: SwigluCall) -> str:
    """Return "" or why the Triton kernels do not support the call."""
    for name, tensor in (("x", call.x), ("bias", call.bias)):
        if tensor is not None and tensor.dtype not in _DTYPES:
            return f"it takes fp16, bf16 and fp32, {name} is {str(tensor.dtype).removeprefix('torch.')}"
    return "" if call.x.numel() else "x is empty"


def run(call: SwigluCall) -> torch.Tensor:
    """Return the gated activation."""
    result: torch.Tensor = _Swiglu.apply(call.x, call.bias)
    return result


@functools.lru_cache(maxsize=256)
def _cut(half: int) -> Tiles:
    """Return tiles of at most 16 elements per thread. With more, the live values would not fit into registers."""
    cut = tiles(half, live=8, widest=4096)
    return replace(cut, warps=2 * cut.warps)


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        x = x.contiguous()
        bias = None if bias is None else bias.contiguous()
        half = x.shape[-1] // 2
        rows, cut = x.numel() // (2 * half), _cut(half)
        y = x.new_empty(*x.shape[:-1], half)
        _launch_forward(
            programs(rows, cut, x.is_cuda),
            x, bias, y, rows, half, bias is not None, cut.rows, cut.width, warps=cut.warps,
        )  # fmt: skip
        ctx.save_for_backward(x, bias)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, bias = ctx.saved_tensors
        grad, dx = grads[0].contiguous(), torch.empty_like(x)
        half = x.shape[-1] // 2
        rows, cut = x.numel() // (2 * half), _cut(half)
        count, of_bias, summed = programs(rows, cut, x.is_cuda), None, ctx.needs_input_grad[1]
        if summed:
            # Each program sums the gradient of the bias over its rows. Adding these sums in order is deterministic.
            count = min(count, 8 * multiprocessors(x.device))
            of_bias = torch.empty(1, count, 2 * half, dtype=torch.float32, device=x.device)
        _launch_gradient(
            count,
            grad, x, bias, dx, of_bias, rows, half, bias is not None, summed, cut.rows, cut.width, warps=cut.warps,
        )  # fmt: skip
        return dx, None if of_bias is None else sum_over_programs(of_bias, [bias.dtype])[0]


@triton.jit
def _forward_kernel(x, bias, y, rows, half, BIAS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Compute the gated half of ``rows`` rows of 2 ``half`` elements, in tiles of columns."""
    for at in range(0, half, TILE):
        column = at + tl.arange(0, TILE)[None, :]
        inside = column < half
        if BIAS:
            of_gate = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
            of_value = tl.load(bias + half + column, mask=inside, other=0.0).to(tl.float32)
        for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
            row = first + tl.arange(0, ROWS)[:, None]
            start, here = row.to(tl.int64) * half, inside & (row < rows)
            gate = tl.load(x + 2 * start + column, mask=here, other=0.0).to(tl.float32)
            value = tl.load(x + 2 * start + half + column, mask=here, other=0.0).to(tl.float32)
            if BIAS:
                gate += of_gate
                value += of_value
            result = gate / (1.0 + tl.exp(-gate)) * value
            tl.store(y + start + column, result.to(y.dtype.element_ty), mask=here)


@triton.jit
def _gradient_kernel(
    grad, x, bias, dx, of_bias, rows, half,
    BIAS: tl.constexpr, SUMMED: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of both halves, and their sums over this program's rows."""
    for at in range(0, half, TILE):
        column = at + tl.arange(0, TILE)[None, :]
        inside = column < half
        if BIAS:
            of_gate = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
            of_value = tl.load(bias + half + column, mask=inside, other=0.0).to(tl.float32)
        if SUMMED:
            sum_gate = tl.zeros((ROWS, TILE), tl.float32)
            sum_value = tl.zeros((ROWS, TILE), tl.float32)
        for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
            row = first + tl.arange(0, ROWS)[:, None]
            start, here = row.to(tl.int64) * half, inside & (row < rows)
            gate = tl.load(x + 2 * start + column, mask=here, other=0.0).to(tl.float32)
            value = tl.load(x + 2 * start + half + column, mask=here, other=0.0).to(tl.float32)
            g = tl.load(grad + start + column, mask=here, other=0.0).to(tl.float32)
            if BIAS:
                gate += of_gate
                value += of_value
            share = 1.0 / (1.0 + tl.exp(-gate))
            d_gate = g * value * share * (1.0 + gate * (1.0 - share))
            d_value = g * gate * share
            tl.store(dx + 2 * start + column, d_gate.to(dx.dtype.element_ty), mask=here)
            tl.store(dx + 2 * start + half + column, d_value.to(dx.dtype.element_ty), mask=here)
            if SUMMED:
                sum_gate += d_gate
                sum_value += d_value
        if SUMMED:
            place = of_bias + tl.program_id(0) * 2 * half + column
            tl.store(place, tl.sum(sum_gate, 0)[None, :], mask=inside)
            tl.store(place + half, tl.sum(sum_value, 0)[None, :], mask=inside)


_launch_forward, _launch_gradient = Launcher(_forward_kernel), Launcher(_gradient_kernel)
