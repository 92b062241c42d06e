"""Gradient overflow on a device without Inf: the Ascend 910A saturates and sets a flag instead."""

from __future__ import annotations

import functools
from typing import Any

from ascend_adapt import Call, Symptom, wrap

# Methods of DeepSpeed that return whether a gradient of this step contains Inf or NaN; each ends in a collective.
_CHECKS = {
    "overflow_flag_zero_1_2": "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.has_overflow",
    "overflow_flag_zero_3": "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.has_overflow",
    "overflow_flag_fp16": "deepspeed.runtime.utils:CheckOverflow.has_overflow",
    "overflow_flag_fp16_norm": "deepspeed.runtime.utils:CheckOverflow.check_using_norm",
}


def overflowed_or_flagged(call: Call) -> bool:
    """Return whether a step overflowed, by DeepSpeed's check or the overflow flag of any rank since the last step."""
    if not _saturates():
        return bool(call.proceed())
    import torch
    import torch.distributed
    from torch_npu.npu import utils

    # Read the flag first, because the check computes on the device.
    raised = torch.tensor([float(utils.get_npu_overflow_flag())], device="npu")
    found = bool(call.proceed())
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(raised, torch.distributed.ReduceOp.MAX)
    utils.clear_npu_overflow_flag()
    return found or bool(raised.item())


@functools.cache
def _saturates() -> bool:
    from torch_npu.npu import utils

    return not utils.is_support_inf_nan()


def _patch(name: str, target: str) -> Any:
    def has_overflow(call: Call) -> bool:
        """Return whether a gradient of this step overflowed."""
        return overflowed_or_flagged(call)

    has_overflow.__name__ = has_overflow.__qualname__ = name
    return wrap(
        target,
        requires="deepspeed>=0.6.0",
        devices="npu",
        why="on Ascend 910A, an overflow is a large number and a flag, but DeepSpeed only checks for Inf and NaN",
        until="support for Ascend 910A ends",
        without="wrong numbers",
        symptom=Symptom(reason="the fault is in how the device handles an overflow"),
    )(has_overflow)


OVERFLOW_CHECKS = tuple(_patch(name, target) for name, target in _CHECKS.items())
