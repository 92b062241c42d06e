"""Precision of the reference arithmetic: the next wider dtype than the operator's."""

from __future__ import annotations

import torch


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64 if it is float32, in float32 if it is narrower."""
    return tensor.detach().to(torch.float64 if tensor.dtype in (torch.float32, torch.float64) else torch.float32)


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float32 if it has 16 bits, else itself: devices sum products of 16 bits in float32."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
