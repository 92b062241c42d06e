"""Checks for features that older chips lack: float8 before the 950, bfloat16 and some operators on the 910A."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch

from ascend_adapt.emulation import SOCS
from ascend_adapt.npu_limits import products as limits

_FLOAT8 = frozenset(getattr(torch, name) for name in dir(torch) if name.startswith("float8_"))


def is_910a() -> bool:
    """Return whether the emulated device of this process is a 910A."""
    return os.environ.get("ASCEND_ADAPT_EMULATED_SOC", "") == SOCS["910A"]


def require(needs_a2: bool, tensors: Iterable[torch.Tensor]) -> None:
    """Check that the device supports an operator and the dtypes of its tensors.

    Raises:
        LimitNotKept: the device lacks the operator or a dtype.
    """
    tensors = list(tensors)
    limits.FLOAT8.require(all(tensor.dtype not in _FLOAT8 for tensor in tensors), "a tensor is float8")
    if not is_910a():
        return
    limits.A2_OPERATOR.require(not needs_a2, "the device is a 910A")
    limits.BFLOAT16.require(all(tensor.dtype != torch.bfloat16 for tensor in tensors), "a tensor is bfloat16")
