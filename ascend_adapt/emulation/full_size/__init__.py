"""Rehearsal at full size: device memory is reserved but never touched, and kernels only determine shapes.

Small tensors hold values (token ids, masks, shapes that ranks send each other, losses), so that programs take
the same branches as on a device. All other tensors have only a shape, a dtype, strides, and an address from
torch_npu's allocator.
"""

from __future__ import annotations

import os

VARIABLE = "ASCEND_ADAPT_EMULATED_FULL_SIZE"
"""Environment variable that holds the number of optimizer steps after which the job ends."""
STEPS = 2
"""Default number of steps. Memory use repeats from the second step on; the first step creates the optimizer states."""
_value = os.environ.get(VARIABLE)


def is_on() -> bool:
    """Return whether this process is part of a rehearsal at full size."""
    return _value is not None


def steps() -> int:
    """Return the number of optimizer steps after which this process ends."""
    return int(_value or STEPS)
