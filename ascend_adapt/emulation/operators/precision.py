"""The precision of the reference arithmetic: one step above the operator's own."""

from __future__ import annotations

import torch


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64 if it is float32, in float32 if it is narrower."""
    return tensor.detach().to(torch.float64 if tensor.dtype in (torch.float32, torch.float64) else torch.float32)
