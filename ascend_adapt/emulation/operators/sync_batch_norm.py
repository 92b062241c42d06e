"""Operators of SyncBatchNorm on a device: statistics of one rank and of all ranks, and normalisation with them.

torch's SyncBatchNorm calls aten operators that the CPU lacks. torch_npu's SyncBatchNorm calls batch_norm_reduce and
batch_norm_gather_stats_update. Channels are dimension 1; statistics are float32 [C], or [R, C] for R ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.npu_limits import batch_norm as limits


def stats(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and reciprocal standard deviation of each channel."""
    rows = _rows(input)
    return rows.mean(1).float(), torch.rsqrt(rows.var(1, unbiased=False) + eps).float()


def gather_stats_with_counts(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and reciprocal deviation over all ranks; update the running statistics in place."""
    means, number = wide(mean), wide(counts).reshape(-1, 1)
    squares = wide(invstd).pow(-2) - eps + means.square()
    totals = (means * number).sum(0), (squares * number).sum(0)
    found = _merged(*totals, running_mean, running_var, momentum, eps, number)
    return found[0].to(mean.dtype), found[1].to(mean.dtype)


def gather_stats(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the statistics over all ranks, each of which has ``count`` elements."""
    counts = mean.new_full((mean.shape[0],), count)
    return gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


def elemt(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return (x - mean) * invstd * weight + bias."""
    x = wide(input)
    y = (x - _shaped(mean, x)) * _shaped(invstd, x)
    y = y if weight is None else y * _shaped(weight, x)
    y = y if bias is None else y + _shaped(bias, x)
    return y.to(input.dtype) if out is None else out.resize_(y.shape).copy_(y)


def backward_reduce(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Return sum(dy) and sum(dy * (x - mean)) per channel, and the gradients of weight and bias."""
    dy = _rows(grad_out)
    of_shift, of_scale = dy.sum(1), (dy * (_rows(input) - wide(mean).unsqueeze(1))).sum(1)
    dtype = mean.dtype if weight is None else weight.dtype
    return (
        of_shift.float() if input_g else None,
        of_scale.float() if input_g else None,
        (of_scale * wide(invstd)).to(dtype) if weight_g else None,
        of_shift.to(dtype) if bias_g else None,
    )


def backward_elemt(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
    count: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient of the input, from the sums of all ranks."""
    x, number = wide(input), wide(count).sum()
    unit = (x - _shaped(mean, x)) * _shaped(invstd, x).square()
    dx = wide(grad_out) - _shaped(wide(sum_dy) / number, x) - unit * _shaped(wide(sum_dy_xmu) / number, x)
    dx = dx * _shaped(invstd, x)
    return (dx if weight is None else dx * _shaped(weight, x)).to(input.dtype)


@kernel("batch_norm_reduce")
def sums(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum and the sum of squares of each channel, in float32."""
    limits.CHANNELS.require(input.dim() > 1, f"input has {input.dim()} dimension")
    rows = _rows(input)
    return rows.sum(1).float(), rows.square().sum(1).float()


@kernel("batch_norm_gather_stats_update")
def gather_sums(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and reciprocal deviation from each rank's sums (``mean``) and sums of squares (``invstd``)."""
    number = wide(counts).reshape(-1, 1)
    totals = wide(mean).sum(0), wide(invstd).sum(0)
    found = _merged(*totals, running_mean, running_var, momentum, eps, number)
    return found[0].to(mean.dtype), found[1].to(mean.dtype)


def _merged(
    total: torch.Tensor,
    squares: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    number = counts.sum()
    mean = total / number
    variance = squares / number - mean.square()
    for running, value in ((running_mean, mean), (running_var, variance * number / (number - 1))):
        if running is not None:
            running.copy_(running * (1 - momentum) + value * momentum)
    return mean.float(), torch.rsqrt(variance + eps).float()


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Reshape a tensor to [C, elements per channel], in a wider dtype."""
    return wide(x).transpose(0, 1).flatten(1)


def _shaped(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Reshape one value per channel so that it broadcasts to ``x``."""
    return wide(values).to(x.dtype).reshape(1, -1, *[1] * (x.dim() - 2))


ATEN: dict[str, Callable[..., Any]] = {
    "aten::batch_norm_stats": stats,
    "aten::batch_norm_gather_stats": gather_stats,
    "aten::batch_norm_gather_stats_with_counts": gather_stats_with_counts,
    "aten::batch_norm_elemt": elemt,
    "aten::batch_norm_elemt.out": elemt,
    "aten::batch_norm_backward_reduce": backward_reduce,
    "aten::batch_norm_backward_elemt": backward_elemt,
}
