"""Checks for the 910A (Atlas training series), which lacks some of these operators and bfloat16."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch

from ascend_adapt.emulation import SOCS
from ascend_adapt.npu_limits import products as limits


def is_910a() -> bool:
    """Return whether the emulated device of this process is a 910A."""
    return os.environ.get("ASCEND_ADAPT_EMULATED_SOC", "") == SOCS["910A"]


def require(needs_a2: bool, tensors: Iterable[torch.Tensor]) -> None:
    """Check that the device has an operator, and the dtypes of its tensors.

    Raises:
        LimitNotKept: the device lacks the operator or a dtype.
    """
    if not is_910a():
        return
    limits.A2_OPERATOR.require(not needs_a2, "the device is a 910A")
    limits.BFLOAT16.require(all(tensor.dtype != torch.bfloat16 for tensor in tensors), "a tensor is bfloat16")
