"""Gradients that overflowed, on a device that has no Inf: Ascend 910A saturates, and raises a flag instead."""

from __future__ import annotations

import functools
from typing import Any

from ascend_adapt import Symptom, wrap

# Methods of DeepSpeed that tell whether any gradient of this step is Inf or NaN; each ends in a collective.
_QUESTIONS = {
    "overflow_flag_zero_1_2": "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.has_overflow",
    "overflow_flag_zero_3": "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.has_overflow",
    "overflow_flag_fp16": "deepspeed.runtime.utils:CheckOverflow.has_overflow",
    "overflow_flag_fp16_norm": "deepspeed.runtime.utils:CheckOverflow.check_using_norm",
}


def ask_the_flag_too(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell that a step overflowed also if the device of any rank has raised its flag since the last step."""
    if not _saturates():
        return bool(wrapped(*args, **kwargs))
    import torch
    import torch.distributed
    from torch_npu.npu import utils

    # Read first: what follows computes, too.
    raised = torch.tensor([float(utils.get_npu_overflow_flag())], device="npu")
    found = bool(wrapped(*args, **kwargs))
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(raised, torch.distributed.ReduceOp.MAX)
    utils.clear_npu_overflow_flag()
    return found or bool(raised.item())


@functools.cache
def _saturates() -> bool:
    from torch_npu.npu import utils

    return not utils.is_support_inf_nan()


def _patch(name: str, target: str) -> Any:
    def has_overflow(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Tell whether any gradient of this step overflowed."""
        return ask_the_flag_too(wrapped, instance, args, kwargs)

    has_overflow.__name__ = has_overflow.__qualname__ = name
    return wrap(
        target,
        requires="deepspeed>=0.6.0",
        devices="npu",
        why="on Ascend 910A an overflow is a large number and a raised flag, and Inf or NaN is what is looked for",
        until="support for Ascend 910A ends",
        without="wrong numbers",
        symptom=Symptom(reason="the fault is in what the device does with an overflow"),
    )(has_overflow)


OVERFLOW_CHECKS = tuple(_patch(name, target) for name, target in _QUESTIONS.items())
