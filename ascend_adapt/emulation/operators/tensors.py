"""Formats shapes and dtypes of tensors for messages."""

from __future__ import annotations

import torch

from ascend_adapt.npu_limits import limit

FLOATS = tuple(getattr(torch, name) for name in limit.FLOATS)


def shape(tensor: torch.Tensor) -> str:
    """Format a tensor's shape for messages: ``[2, 3]``."""
    return str(list(tensor.shape))


def dtype(tensor: torch.Tensor) -> str:
    """Format a tensor's dtype for messages: ``float16``."""
    return str(tensor.dtype).removeprefix("torch.")
