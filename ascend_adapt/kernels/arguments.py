"""Argument checks that all kernels share, except those of masks, which are in ``masks``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ascend_adapt.errors import KernelArgumentError


def is_tensor(value: Any) -> bool:
    """Return whether ``value`` is a torch tensor, not a NumPy array."""
    return hasattr(value, "requires_grad") and hasattr(value, "dtype")


def describe(value: Any) -> str:
    """Return the dtype and shape of a tensor, or the type name of any other value."""
    return f"{value.dtype} {list(value.shape)}" if is_tensor(value) else type(value).__name__


def check_float(name: str, tensor: Any, dims: int | None = None, shape: str = "", *, least: int = 0) -> None:
    """Check for a float tensor with ``dims`` or at least ``least`` axes. Messages state ``shape`` as expected."""
    if not is_tensor(tensor) or not tensor.dtype.is_floating_point:
        raise KernelArgumentError(f"{name}: is {describe(tensor)}, expected a float tensor {shape} — convert it")
    if tensor.dim() < least or (dims is not None and tensor.dim() != dims):
        raise KernelArgumentError(f"{name}: has shape {list(tensor.shape)}, expected {shape} — reshape it")


def check_shape(name: str, tensor: Any, expected: Sequence[int], of: str) -> None:
    """Check for the shape ``expected``. Messages name ``of``, which determines it."""
    if tuple(tensor.shape) != tuple(expected):
        raise KernelArgumentError(
            f"{name}: has shape {list(tensor.shape)}, {of} requires {list(expected)} — pass matching tensors"
        )


def check_float_or_none(name: str, tensor: Any, expected: Sequence[int], of: str) -> None:
    """Check for None or a float tensor of shape ``expected``. Messages name ``of``, which determines it."""
    if tensor is not None:
        check_float(name, tensor, shape=str(list(expected)))
        check_shape(name, tensor, expected, of)


def check_together(first: str, tensor: Any, **others: Any) -> None:
    """Check that all tensors are on the device of the first tensor."""
    for name, other in others.items():
        if other is not None and other.device != tensor.device:
            raise KernelArgumentError(f"{name}: is on {other.device}, {first} on {tensor.device} — move it")


def check_number(name: str, value: Any) -> None:
    """Check for a number or a one-element tensor."""
    if not hasattr(value, "__float__") or math.prod(getattr(value, "shape", ())) != 1:
        found = describe(value) if is_tensor(value) else repr(value)
        raise KernelArgumentError(f"{name}: is {found}, expected a number — correct it")


def check_branch(x: Any, branch: Any, **biases: Any) -> None:
    """Check that ``branch`` can be added to the residual stream ``x``, and the biases to ``branch``."""
    of = f"x {list(x.shape)}"
    check_float("branch", branch, shape="[..., D]")
    check_shape("branch", branch, x.shape, of)
    for name, bias in biases.items():
        check_float_or_none(name, bias, x.shape[-1:], of)
    if branch.dtype != x.dtype:
        raise KernelArgumentError(f"branch: is {branch.dtype}, expected {x.dtype}, the dtype of x — convert one")


def check_dropout(dropout_p: float, seed: Any) -> None:
    """Check that a seed is given with dropout, and only then."""
    if (dropout_p > 0) != (seed is not None):
        raise KernelArgumentError(
            f"dropout_p={dropout_p}, seed={seed!r}: expected dropout with a seed — pass both or neither"
        )


def check_seed(seed: Any) -> None:
    """Check that the seed is a tensor of one number. This is done on every call, because it may be no tensor."""
    if not is_tensor(seed) or seed.numel() != 1:
        raise KernelArgumentError(f"seed: is {seed!r}, expected an int64 tensor [1] — create one with torch.randint")
