"""Saturating arithmetic, with an overflow flag, of devices without Inf and NaN: the 910A, and the 910B in this mode.

A result beyond the largest finite value becomes that value, NaN becomes 0, and the overflow flag stays set until it is
cleared. Code that looks for Inf in gradients finds none. Only ranks import this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ascend_adapt.emulation import library

# These operators move values, or create them from constants, without computing.
_MOVES = frozenset(
    (
        "_index_put_impl_",
        "_pack_padded_sequence",
        "cat",
        "clone",
        "constant_pad_nd",
        "copy_",
        "embedding",
        "empty",
        "expand",
        "fill_",
        "flip",
        "full",
        "full_like",
        "gather",
        "index",
        "index_copy",
        "index_copy_",
        "index_fill",
        "index_fill_",
        "index_put",
        "index_put_",
        "index_select",
        "masked_fill",
        "masked_fill_",
        "masked_scatter",
        "masked_scatter_",
        "masked_select",
        "new_full",
        "repeat",
        "roll",
        "scalar_tensor",
        "scatter",
        "scatter_",
        "stack",
        "take",
        "tril",
        "tril_",
        "triu",
        "triu_",
        "where",
        "zero_",
    )
)


def is_on() -> bool:
    """Return whether the device saturates, which torch_npu decides at start from the chip and INF_NAN_MODE_*."""
    return bool(library.saturates().value)


def computes(base_name: str) -> bool:
    """Return whether an aten operator of this name computes its output."""
    return base_name not in _MOVES


def saturate(results: Any) -> None:
    """Replace Inf and NaN in place by the values that the device would return, and set the flag if there were any."""
    for tensor in floats(results):
        if not bool(torch.isfinite(tensor).all()):
            tensor.nan_to_num_(nan=0.0)
            raise_flag()


def raise_flag() -> None:
    """Set the overflow flag."""
    library.overflow().value = 1


def is_flag_raised() -> bool:
    """Return whether an overflow has occurred since the flag was last cleared."""
    return bool(library.overflow().value)


def clear_flag() -> None:
    """Clear the flag."""
    library.overflow().value = 0


def take_flag() -> bool:
    """Return whether the flag is set, and clear it."""
    was = is_flag_raised()
    clear_flag()
    return was


def floats(value: Any) -> Iterable[torch.Tensor]:
    """Yield the non-empty floating-point tensors of a value, including those in lists."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.numel():
            yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from floats(one)
