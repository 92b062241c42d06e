"""split_qkv with a Triton backward: one kernel gathers the three gradients and sums the bias's."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.column_sums import strips
from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.split_qkv import SplitQkvCall
from ascend_adapt.kernels.operators.split_qkv._reference import views
from ascend_adapt.kernels.triton_launch import Launcher

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def supports(call: SplitQkvCall) -> str:
    """Return "" or why the Triton kernel does not serve the call."""
    if call.fused.dtype not in _DTYPES:
        return f"it takes fp16, bf16 and fp32, not {str(call.fused.dtype).removeprefix('torch.')}"
    return "" if call.fused.numel() else "there are no tokens"


def run(call: SplitQkvCall) -> tuple[torch.Tensor, ...]:
    """Return queries, keys and values."""
    result: tuple[torch.Tensor, ...] = _Split.apply(call.fused, call.bias, call.heads, call.groups)
    return result


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, fused: torch.Tensor, bias: torch.Tensor | None, heads: int, groups: int
    ) -> tuple[torch.Tensor, ...]:
        ctx.shape, ctx.heads, ctx.groups = fused.shape, heads, groups
        ctx.bias_dtype = None if bias is None else bias.dtype
        return views(fused, heads, groups)

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        batch, length, columns = ctx.shape
        each = [one if one.stride(3) == 1 else one.contiguous() for one in grads]
        device, rows = each[0].device, batch * length
        gradient = torch.empty(ctx.shape, dtype=each[0].dtype, device=device)
        cut, summed = strips(rows, columns, device), ctx.bias_dtype is not None
        sums = torch.empty(cut.groups, columns, dtype=torch.float32, device=device) if summed else None
        strides = [one.stride(axis) for one in each for axis in (0, 1, 2)]
        _launch(
            cut.programs,
            *each, gradient, sums, rows, columns, length, *strides, ctx.heads // ctx.groups, each[0].shape[3],
            summed, cut.groups, cut.rows, cut.width, warps=8,
        )  # fmt: skip
        return gradient, None if sums is None else sums.sum(0).to(ctx.bias_dtype), None, None


@triton.jit
def _gather_kernel(
    dq, dk, dv, gradient, sums, rows, columns, length,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    SHARED: tl.constexpr, WIDE: tl.constexpr, SUMMED: tl.constexpr,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One strip of columns of the fused gradient; SHARED query heads for a key head, WIDE elements in a head."""
    group = tl.program_id(0) % GROUPS
    column = (tl.program_id(0) // GROUPS) * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = column < columns
    head = column // ((SHARED + 2) * WIDE)
    slot = column % ((SHARED + 2) * WIDE) // WIDE
    d = column % WIDE
    of_q = inside & (slot < SHARED)
    of_k = inside & (slot == SHARED)
    of_v = inside & (slot == SHARED + 1)
    q_column = (head * SHARED + slot).to(tl.int64) * q_head + d
    k_column, v_column = head.to(tl.int64) * k_head + d, head.to(tl.int64) * v_head + d
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(group * ROWS, rows, GROUPS * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        batch, token, there = (row // length).to(tl.int64), (row % length).to(tl.int64), row < rows
        q = tl.load(dq + batch * q_batch + token * q_token + q_column, mask=of_q & there, other=0.0)
        k = tl.load(dk + batch * k_batch + token * k_token + k_column, mask=of_k & there, other=0.0)
        v = tl.load(dv + batch * v_batch + token * v_token + v_column, mask=of_v & there, other=0.0)
        value = q + k + v
        tl.store(gradient + row.to(tl.int64) * columns + column, value, mask=inside & there)
        if SUMMED:
            total += value.to(tl.float32)
    if SUMMED:
        tl.store(sums + group.to(tl.int64) * columns + column, tl.sum(total, 0)[None, :], mask=inside)


_launch = Launcher(_gather_kernel)
