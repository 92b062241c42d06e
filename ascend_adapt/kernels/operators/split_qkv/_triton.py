"""split_qkv with a Triton backward: one kernel gathers the three gradients and sums the gradient of the bias."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.split_qkv import SplitQkvCall
from ascend_adapt.kernels.operators.split_qkv._reference import views
from ascend_adapt.kernels.partial_sums import sum_over_programs
from ascend_adapt.kernels.tiles import multiprocessors
from ascend_adapt.kernels.triton_launch import Launcher

_ELEMENTS, _PER_PROCESSOR, _WARPS = 4096, 4, 4

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def supports(call: SplitQkvCall) -> str:
    """Return "" or why the Triton kernel does not support the call."""
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
        wide, heads = each[0].shape[3], ctx.heads + 2 * ctx.groups
        width = max(16, triton.next_power_of_2(wide))
        height = max(1, _ELEMENTS // width)
        parts = max(1, min(-(-rows // height), -(-multiprocessors(device) * _PER_PROCESSOR // heads)))
        summed = ctx.bias_dtype is not None
        sums = torch.empty(1, parts, columns, dtype=torch.float32, device=device) if summed else None
        strides = [one.stride(axis) for one in each for axis in (0, 1, 2)]
        _launch(
            heads * parts,
            *each, gradient, sums, rows, columns, length, *strides, ctx.heads // ctx.groups, wide, summed, parts,
            height, width, warps=_WARPS,
        )  # fmt: skip
        return gradient, None if sums is None else sum_over_programs(sums, [ctx.bias_dtype])[0], None, None


@triton.jit
def _gather_kernel(
    dq, dk, dv, gradient, sums, rows, columns, length,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    SHARED: tl.constexpr, WIDE: tl.constexpr, SUMMED: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gather one head of the fused gradient, for every PARTS-th tile of tokens. SHARED query heads share a key head."""
    head, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    group, slot = (head // (SHARED + 2)).to(tl.int64), head % (SHARED + 2)
    if slot < SHARED:
        source = dq + (group * SHARED + slot) * q_head
        of_batch = q_batch
        of_token = q_token
    elif slot == SHARED:
        source = dk + group * k_head
        of_batch = k_batch
        of_token = k_token
    else:
        source = dv + group * v_head
        of_batch = v_batch
        of_token = v_token
    column = tl.arange(0, WIDTH)[None, :]
    inside = column < WIDE
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    into = gradient + head * WIDE
    for first in tl.range(part * ROWS, rows, PARTS * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        here = inside & (row < rows)
        place = (row // length).to(tl.int64) * of_batch + (row % length).to(tl.int64) * of_token
        value = tl.load(source + place + column, mask=here, other=0.0)
        tl.store(into + row.to(tl.int64) * columns + column, value, mask=here)
        if SUMMED:
            total += value.to(tl.float32)
    if SUMMED:
        place = sums + part.to(tl.int64) * columns + head * WIDE + column
        tl.store(place, tl.sum(total, 0)[None, :], mask=inside)


_launch = Launcher(_gather_kernel)
