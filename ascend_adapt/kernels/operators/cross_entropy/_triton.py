"""Cross entropy in Triton: reads the logits once in forward, and once in backward to write their gradient.

Rows may have any stride, so logits computed into a wider buffer need no copy.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
import triton
import triton.language as tl

from ascend_adapt.kernels.first_order import first_order
from ascend_adapt.kernels.operators.cross_entropy import CrossEntropyCall
from ascend_adapt.kernels.tiles import programs, tiles
from ascend_adapt.kernels.triton_launch import Launcher


def supports(call: CrossEntropyCall) -> str:
    """Return "" or why the Triton kernels do not support the call."""
    if call.logits.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it takes fp16, bf16 and fp32, not {str(call.logits.dtype).removeprefix('torch.')}"
    if call.logits.numel() == 0:
        return "there are no logits"
    return ""


def run(call: CrossEntropyCall) -> torch.Tensor:
    """Return the loss of each token, fp32 [T]."""
    losses: torch.Tensor = _CrossEntropy.apply(call.logits, call)
    return losses


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, call: CrossEntropyCall) -> torch.Tensor:
        # backward writes a gradient with these strides, so rows must not share memory, as expanded rows do.
        if logits.stride(1) != 1 or logits.stride(0) < logits.shape[1]:
            logits = logits.contiguous()
        losses, normaliser = losses_and_normaliser(logits, call)
        ctx.call = call
        ctx.save_for_backward(logits, normaliser)
        return losses

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, normaliser = ctx.saved_tensors
        into = torch.empty_strided(logits.shape, logits.stride(), dtype=logits.dtype, device=logits.device)
        return gradient(logits, normaliser, grads[0], ctx.call, into), None


def losses_and_normaliser(logits: torch.Tensor, call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss and the log-sum-exp over all ranks of each token, both fp32 [T].

    ``call`` has the labels and options of a CrossEntropyCall. The last axis of ``logits`` [T, V] has stride 1.
    """
    rows, columns = logits.shape
    cut, labels = tiles(columns, live=3), call.labels.contiguous()
    top, total, target, everything = torch.empty(4, rows, dtype=torch.float32, device=logits.device)
    _launch_rows(
        programs(rows, cut, logits.is_cuda),
        logits, labels, top, total, target, everything, rows, columns, logits.stride(0), call.first,
        call.label_smoothing > 0, cut.width, warps=cut.warps,
    )  # fmt: skip
    if call.group is not None:
        highest = top.clone()
        torch.distributed.all_reduce(highest, torch.distributed.ReduceOp.MAX, call.group)
        total *= (top - highest).exp_()
        sums = torch.stack([total, target, everything])
        torch.distributed.all_reduce(sums, torch.distributed.ReduceOp.SUM, call.group)
        top, (total, target, everything) = highest, sums
    normaliser = top + total.log_()
    losses = normaliser - (1 - call.label_smoothing) * target
    if call.label_smoothing:
        losses -= call.label_smoothing / call.vocabulary * everything
    outside = (labels < 0) | (labels >= call.vocabulary)
    return losses.masked_fill_(outside, float("nan")).masked_fill_(labels == call.ignore_index, 0.0), normaliser


def gradient(
    logits: torch.Tensor, normaliser: torch.Tensor, grad: torch.Tensor, call: Any, into: torch.Tensor
) -> torch.Tensor:
    """Write the logits' gradient [T, V], given the losses' gradient [T], into ``into``, and return it.

    ``into`` may be the logits."""
    rows, columns = logits.shape
    cut = tiles(columns, live=3)
    _launch_gradient(
        programs(rows, cut, logits.is_cuda),
        logits, call.labels.contiguous(), normaliser, grad.contiguous(), into, rows, columns, logits.stride(0),
        call.first, call.ignore_index, float(call.label_smoothing), call.label_smoothing / call.vocabulary,
        cut.width, warps=cut.warps,
    )  # fmt: skip
    return into


@triton.jit
def _rows_kernel(logits, labels, top, total, target, everything, rows, columns, stride, first_id,
                 SMOOTH: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """Compute each row's maximum, sum of exponentials relative to it, label's logit (0 if on another rank), and sum."""
    tile = tl.arange(0, TILE)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        start = logits + tl.cast(row, tl.int64) * stride
        highest = -float("inf")
        exponentials = 0.0
        summed = 0.0
        for at in range(0, columns, TILE):
            column = at + tile
            x = tl.load(start + column, mask=column < columns, other=-float("inf")).to(tl.float32)
            higher = tl.maximum(highest, tl.max(x, 0))
            shift = tl.where(higher == -float("inf"), 0.0, higher)
            exponentials = exponentials * tl.exp(highest - shift) + tl.sum(tl.exp(x - shift), 0)
            highest = higher
            if SMOOTH:
                summed += tl.sum(tl.where(column < columns, x, 0.0), 0)
        label = tl.load(labels + row) - first_id
        here = (label >= 0) & (label < columns)
        tl.store(top + row, highest)
        tl.store(total + row, exponentials)
        tl.store(everything + row, summed)
        tl.store(target + row, tl.load(start + label, mask=here, other=0.0).to(tl.float32))


@triton.jit
def _gradient_kernel(logits, labels, normaliser, grad, gradient, rows, columns, stride, first_id, ignored,
                     smoothing, spread, TILE: tl.constexpr):  # fmt: skip
    """Compute the gradient of each row's logits: (softmax - target) * gradient of the row's loss."""
    tile = tl.arange(0, TILE)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        start = tl.cast(row, tl.int64) * stride
        label = tl.load(labels + row)
        share = tl.where(label == ignored, 0.0, tl.load(grad + row).to(tl.float32))
        column_of_label = label - first_id
        log_sum = tl.load(normaliser + row)
        for at in range(0, columns, TILE):
            column = at + tile
            x = tl.load(logits + start + column, mask=column < columns, other=-float("inf")).to(tl.float32)
            d = tl.exp(x - log_sum) - spread
            d = tl.where(column == column_of_label, d - (1.0 - smoothing), d) * share
            tl.store(gradient + start + column, d.to(gradient.dtype.element_ty), mask=column < columns)


_launch_rows, _launch_gradient = Launcher(_rows_kernel), Launcher(_gradient_kernel)
