"""Determines which tensors hold values at full size, and the stand-ins for values that are not computed; ranks only."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from typing import Any

import torch

from ascend_adapt.emulation import library

MASK_BYTES = 16 << 20
"""Maximum bytes of a mask that holds values, in any dtype: 2048 x 2048 in float32."""

_META = torch.device("meta")
_empty_strided = torch.empty_strided

# Results of reductions over tensors without values. A training loop must see a finite loss and no overflow,
# and must not divide by 0. Sums and means are 1, so their mean and its logarithm are finite.
_ZERO = ("max", "min", "amax", "amin", "argmax", "argmin", "isnan", "isinf", "any", "count_nonzero", "log")
_TRUE = ("all", "isfinite", "equal")


class _Computing(threading.local):
    """Context in which this thread computes kernels of the device, on host tensors of any size."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1


computing = _Computing()

# Not at import, because only ranks on an emulated NPU have the library.
_value_bytes = functools.cache(library.value_bytes)


def hold(tensor: torch.Tensor) -> bool:
    """Return whether this tensor holds values: it and its storage are small enough for its dtype, or it is a mask.

    A small view of a large tensor, such as one micro batch of a mask, would read memory that was never written.
    """
    floats, others = _value_bytes()
    storage = tensor.untyped_storage()
    size = max(tensor.numel() * tensor.element_size(), storage.nbytes())
    most = floats if tensor.is_floating_point() or tensor.is_complex() else others
    return bool(size <= most or (size <= MASK_BYTES and is_mask(storage)))


def is_mask(storage: torch.UntypedStorage) -> bool:
    """Return whether a storage is noted as that of a mask, all of whose values were computed."""
    return getattr(storage, "is_mask_at_full_size", False)


def note_mask(tensor: torch.Tensor, mask: bool) -> None:
    """Note whether a tensor's storage is that of a mask, all of whose values were computed."""
    # The Python object of a storage lives as long as the storage, with its attributes.
    tensor.untyped_storage().is_mask_at_full_size = mask


def all_hold(values: Iterable[Any]) -> bool:
    """Return whether all tensors among the arguments of a call, including those in lists, hold values."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if not hold(value):
                return False
        elif isinstance(value, (list, tuple)) and not all_hold(value):
            return False
    return True


def as_meta(tensor: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
    """Return a meta tensor of this shape, dtype and strides; if ``values`` (a CPU tensor) is given, it keeps them."""
    strides = torch.Tensor.stride(tensor)
    meta = _empty_strided(tensor.size(), strides, dtype=tensor.dtype, device=_META)
    if values is not None:
        meta.values_at_full_size = values
    return meta


def of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a kernel argument as a CPU tensor, or None if the argument only has a shape."""
    return getattr(tensor, "values_at_full_size", None) if tensor.is_meta else tensor


def only_shapes() -> bool:
    """Return whether a kernel is called only to determine shapes, so that it creates meta tensors."""
    return bool(torch.get_default_device().type == "meta")


def stand_in(operator: str, dtype: torch.dtype) -> float | bool:
    """Return the fill value for the small result of an operator over tensors without values."""
    words = operator.partition("::")[2].partition(".")[0].strip("_").split("_")
    if any(word in _TRUE for word in words):
        return True
    return 1.0 if dtype.is_floating_point and not any(word in _ZERO for word in words) else 0
