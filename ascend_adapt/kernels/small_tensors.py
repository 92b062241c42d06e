"""Small random tensors with the dtypes and device of a call's tensors. Every rank gets the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ROWS, SIDE = 16, 128
"""Number of rows of a tensor, and of queries or keys of attention: enough to expose a wrong formula."""


def maker() -> Callable[..., Any]:
    """Return a function alike(tensor, *shape) that draws random values like ``tensor``, or returns None for None."""
    import torch

    generator = torch.Generator().manual_seed(1)

    def alike(tensor: Any, *shape: int) -> Any:
        if tensor is None:
            return None
        numbers = torch.randn(shape, generator=generator).to(tensor.device, tensor.dtype)
        return numbers.requires_grad_(tensor.requires_grad)

    return alike


def corner(mask: Any, rows: int, columns: int, heads: int | None = None) -> Any:
    """Return the part of a mask or bias for the last ``rows`` and ``columns`` of the first batch."""
    if mask is None:
        return None
    shape = mask.shape
    for axis in range(mask.dim() - 2):
        is_heads = heads is not None and axis == mask.dim() - 3
        mask = mask.narrow(axis, 0, min(shape[axis], heads if is_heads and heads is not None else 1))
    if mask.dim() > 1 and shape[-2] > 1:
        mask = mask.narrow(-2, shape[-2] - rows, rows)
    if mask.dim() and shape[-1] > 1:
        mask = mask.narrow(-1, shape[-1] - columns, columns)
    return mask.detach().requires_grad_(mask.requires_grad)
