"""Reference of split_qkv, in plain torch."""

from __future__ import annotations

from typing import Any

import torch

from ascend_adapt.kernels.operators.split_qkv import SplitQkvCall


def supports(call: SplitQkvCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: SplitQkvCall) -> tuple[torch.Tensor, ...]:
    """Return queries, keys and values."""
    fused = call.fused
    if call.bias is not None:
        fused = _WithGradientOfBias.apply(fused, call.bias)
    return views(fused, call.heads, call.groups)


def views(fused: torch.Tensor, heads: int, groups: int) -> tuple[torch.Tensor, ...]:
    """Return [B, N, S, D], [B, G, S, D] and [B, G, S, D], views of [B, S, (N + 2 G) D]."""
    batch, length, _ = fused.shape
    shared = heads // groups
    parts = fused.view(batch, length, groups, shared + 2, -1).split((shared, 1, 1), 3)
    return tuple(part.flatten(2, 3).transpose(1, 2) for part in parts)


class _WithGradientOfBias(torch.autograd.Function):
    """Identity whose backward also sums the gradient for the bias."""

    @staticmethod
    def forward(ctx: Any, fused: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.dtype = bias.dtype
        return fused.view_as(fused)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        exact = torch.promote_types(grads[0].dtype, torch.float32)
        return grads[0], grads[0].flatten(0, 1).sum(0, dtype=exact).to(ctx.dtype)
