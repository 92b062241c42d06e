"""Precision of the reference arithmetic: the next wider dtype."""

from __future__ import annotations

import torch


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Convert a float32 tensor to float64, and a narrower tensor to float32."""
    return tensor.detach().to(torch.float64 if tensor.dtype in (torch.float32, torch.float64) else torch.float32)


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Convert a 16-bit tensor to float32, because devices sum 16-bit products in float32; return others unchanged."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
