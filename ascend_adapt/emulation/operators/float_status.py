"""npu_get_float_status and related operators: the overflow flag of a device.

Overflow only sets the flag on a device that saturates (see saturation.py).
"""

from __future__ import annotations

import torch

from ascend_adapt.emulation import saturation
from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.npu_limits import float_status as limits

WORDS = 8


@kernel("npu_alloc_float_status")
def alloc_float_status(self: torch.Tensor) -> torch.Tensor:
    """Return the buffer for a status: eight float32 zeros."""
    return torch.zeros(WORDS)


@kernel("npu_get_float_status")
def get_float_status(self: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """Return eight int32 words; the first is 1 if the flag is set."""
    limits.MODE.require(mode in (0, 1), f"mode is {mode}")
    status = torch.zeros(WORDS, dtype=torch.int32)
    status[0] = int(saturation.is_flag_raised())
    return status


@kernel("_amp_foreach_non_finite_check")
def take_flag(scaled_grads: list[torch.Tensor]) -> bool:
    """Return whether the flag is set, and clear it."""
    return saturation.take_flag()


@kernel("npu_clear_float_status")
def clear_float_status(self: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """Clear the flag, and return eight zeros in the input's dtype."""
    limits.MODE.require(mode in (0, 1), f"mode is {mode}")
    saturation.clear_flag()
    return torch.zeros(WORDS, dtype=self.dtype)
