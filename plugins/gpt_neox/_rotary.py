"""GPT-NeoX's extension ``fused_rotary_positional_embedding`` in torch operators."""

from __future__ import annotations

import torch

NAMES = ("forward", "backward", "forward_cached", "backward_cached")


def forward(t: torch.Tensor, freqs: torch.Tensor, transpose_output_memory: bool = False) -> torch.Tensor:
    """Rotary embedding: ``t`` [S, B, N, D] with its first R dimensions rotated by ``freqs`` [S, 1, 1, R]."""
    return forward_cached(t, freqs.cos(), freqs.sin(), transpose_output_memory)


def backward(output_grads: torch.Tensor, freqs: torch.Tensor, transpose_output_memory: bool = False) -> torch.Tensor:
    """Gradient of ``t``: the inverse rotation."""
    return backward_cached(output_grads, freqs.cos(), freqs.sin(), transpose_output_memory)


def forward_cached(
    t: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, transpose_output_memory: bool = False
) -> torch.Tensor:
    """Rotary embedding of ``t`` [S, B, N, D] by the given cosines and sines [S, 1, 1, R]."""
    return _rotated(t, cos, sin, transpose_output_memory)


def backward_cached(
    output_grads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, transpose_output_memory: bool = False
) -> torch.Tensor:
    """Gradient of ``t``: x * cos - rotate(x * sin), the transpose of the rotation."""
    turned, rest = output_grads[..., : cos.shape[-1]], output_grads[..., cos.shape[-1] :]
    cos, sin = cos.to(turned.dtype), sin.to(turned.dtype)
    first, second = (turned * sin).chunk(2, dim=-1)
    return _in_memory_order(
        torch.cat((turned * cos + torch.cat((second, -first), dim=-1), rest), dim=-1), transpose_output_memory
    )


def _rotated(t: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, transposed: bool) -> torch.Tensor:
    turned, rest = t[..., : cos.shape[-1]], t[..., cos.shape[-1] :]
    cos, sin = cos.to(t.dtype), sin.to(t.dtype)
    first, second = turned.chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    return _in_memory_order(torch.cat((turned * cos + rotated * sin, rest), dim=-1), transposed)


def _in_memory_order(t: torch.Tensor, transposed: bool) -> torch.Tensor:
    """Return ``t``; ``transposed`` keeps its shape and swaps S and B in memory."""
    return t.transpose(0, 1).contiguous().transpose(0, 1) if transposed else t
