"""What every kernel asks of its tensors, beside masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ascend_adapt.errors import KernelArgumentError


def check_float(name: str, tensor: Any, dims: int | None = None, shape: str = "") -> None:
    """Refuse what is not a float tensor of ``dims`` dimensions; ``shape`` is the contract's word for it."""
    if not hasattr(tensor, "dtype") or not tensor.dtype.is_floating_point:
        told = f"{tensor.dtype} {list(tensor.shape)}" if hasattr(tensor, "dtype") else type(tensor).__name__
        raise KernelArgumentError(f"{name}: is {told}, expected a float tensor {shape} — convert it")
    if dims is not None and tensor.dim() != dims:
        raise KernelArgumentError(f"{name}: has shape {list(tensor.shape)}, expected {shape} — reshape it")


def check_shape(name: str, tensor: Any, expected: Sequence[int], of: str) -> None:
    """Refuse another shape than ``expected``, which follows from ``of``; None is taken."""
    if tensor is not None and tuple(tensor.shape) != tuple(expected):
        raise KernelArgumentError(
            f"{name}: has shape {list(tensor.shape)}, {of} asks for {list(expected)} — give matching tensors"
        )


def check_together(first: str, tensor: Any, **others: Any) -> None:
    """Refuse tensors on another device than the first."""
    for name, other in others.items():
        if other is not None and other.device != tensor.device:
            raise KernelArgumentError(f"{name}: is on {other.device}, {first} on {tensor.device} — move it")
