"""Fix for trl's default device map in a job with several NPUs. Source: trl 1.16."""

from __future__ import annotations

import os
from typing import Any

from ascend_adapt import Call, Symptom, wrap
from ascend_adapt.whole_numbers import of_variable


@wrap(
    "trl.trainer.utils:create_model_from_path",
    requires="trl>=0.24",
    devices="npu",
    why="each rank gets device_map='auto', which Trainer refuses, because trl makes an exception for "
    "MULTI_GPU, but not for MULTI_NPU",
    until="trl makes the same exception for MULTI_NPU",
    without="crash",
    symptom=Symptom(reason="trl's releases are not recorded"),
)
def model_on_own_npu(call: Call) -> Any:
    """Omit the device map in a job of several ranks, unless the caller passes one."""
    if of_variable(os.environ, "WORLD_SIZE", 1) > 1:
        call.kwargs = {"device_map": None, **call.kwargs}
    return call.proceed()
