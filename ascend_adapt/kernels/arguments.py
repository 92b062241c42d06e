"""What every kernel asks of its tensors and numbers, beside masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ascend_adapt.errors import KernelArgumentError


def is_tensor(value: Any) -> bool:
    """Return whether it is one of torch's tensors; arrays of numpy are none."""
    return hasattr(value, "requires_grad") and hasattr(value, "dtype")


def told(value: Any) -> str:
    """Return dtype and shape of a tensor, the type of anything else."""
    return f"{value.dtype} {list(value.shape)}" if is_tensor(value) else type(value).__name__


def check_float(name: str, tensor: Any, dims: int | None = None, shape: str = "", *, least: int = 0) -> None:
    """Refuse what is not a float tensor of ``dims`` axes, or of ``least``; ``shape`` is the contract's word for it."""
    if not is_tensor(tensor) or not tensor.dtype.is_floating_point:
        raise KernelArgumentError(f"{name}: is {told(tensor)}, expected a float tensor {shape} — convert it")
    if tensor.dim() < least or (dims is not None and tensor.dim() != dims):
        raise KernelArgumentError(f"{name}: has shape {list(tensor.shape)}, expected {shape} — reshape it")


def check_shape(name: str, tensor: Any, expected: Sequence[int], of: str) -> None:
    """Refuse another shape than ``expected``, which follows from ``of``."""
    if tuple(tensor.shape) != tuple(expected):
        raise KernelArgumentError(
            f"{name}: has shape {list(tensor.shape)}, {of} asks for {list(expected)} — give matching tensors"
        )


def check_float_or_none(name: str, tensor: Any, expected: Sequence[int], of: str) -> None:
    """Refuse what is neither None nor a float tensor of the shape ``expected``, which follows from ``of``."""
    if tensor is not None:
        check_float(name, tensor, shape=str(list(expected)))
        check_shape(name, tensor, expected, of)


def check_together(first: str, tensor: Any, **others: Any) -> None:
    """Refuse tensors on another device than the first."""
    for name, other in others.items():
        if other is not None and other.device != tensor.device:
            raise KernelArgumentError(f"{name}: is on {other.device}, {first} on {tensor.device} — move it")


def check_number(name: str, value: Any) -> None:
    """Refuse what is neither a number nor a tensor of one."""
    if not hasattr(value, "__float__") or math.prod(getattr(value, "shape", ())) != 1:
        found = told(value) if is_tensor(value) else repr(value)
        raise KernelArgumentError(f"{name}: is {found}, expected a number — correct it")
