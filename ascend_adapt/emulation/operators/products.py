"""Checks for the 910A (Atlas training series), which lacks some of these operators and bfloat16."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ascend_adapt.emulation import saturation
from ascend_adapt.npu_limits import products as limits


def require(needs_a2: bool, tensors: Iterable[torch.Tensor]) -> None:
    """Check that the device has an operator, and the dtypes of its tensors.

    Raises:
        LimitNotKept: the device lacks the operator or a dtype.
    """
    if not saturation.is_on():
        return
    limits.A2_OPERATOR.require(not needs_a2, "the device is a 910A")
    limits.BFLOAT16.require(all(tensor.dtype != torch.bfloat16 for tensor in tensors), "a tensor is bfloat16")
