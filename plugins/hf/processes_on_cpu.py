"""Support for accelerate in a multi-rank job on CPUs.

accelerate only creates a process group for accelerators, unless the script passes cpu=True, which disables DeepSpeed.
Source: accelerate 1.15.
"""

from __future__ import annotations

import os
from typing import Any

from ascend_adapt import Call, Symptom, wrap
from ascend_adapt.whole_numbers import of_variable


@wrap(
    "accelerate.state:PartialState._prepare_backend",
    requires="accelerate>=1.0",
    devices="cpu",
    why="without an accelerator, each rank assumes it is the only process and trains alone; with DeepSpeed, it crashes",
    until="accelerate creates a gloo group if LOCAL_RANK is set and there is no accelerator",
    without="wrong numbers",
    symptom=Symptom("distributed_type = DistributedType.NO"),
)
def cpu_process_group(call: Call) -> Any:
    """Return gloo and MULTI_CPU if a rank would get no process group."""
    from accelerate.utils import DistributedType

    backend, kind = call.proceed()
    if kind == DistributedType.NO and of_variable(os.environ, "WORLD_SIZE", 1) > 1 and "LOCAL_RANK" in os.environ:
        return backend or "gloo", DistributedType.MULTI_CPU
    return backend, kind
