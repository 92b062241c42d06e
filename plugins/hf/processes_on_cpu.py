"""accelerate in the ranks of a job on CPUs.

It makes a process group for accelerators only, unless the script itself says cpu=True; and with that, DeepSpeed is
never asked. Read off accelerate 1.15.
"""

from __future__ import annotations

import os
from typing import Any

from ascend_adapt import Symptom, wrap


@wrap(
    "accelerate.state:PartialState._prepare_backend",
    requires="accelerate>=1.0",
    devices="cpu",
    why="without an accelerator a rank takes itself for the only process: each trains alone, with DeepSpeed it crashes",
    until="accelerate makes a gloo group where LOCAL_RANK is set and there is no accelerator",
    without="wrong numbers",
    symptom=Symptom("distributed_type = DistributedType.NO"),
)
def ranks_on_cpu_are_a_group(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return gloo and MULTI_CPU where a rank would get no group at all."""
    from accelerate.utils import DistributedType

    backend, kind = wrapped(*args, **kwargs)
    if kind == DistributedType.NO and int(os.environ.get("WORLD_SIZE", 1)) > 1 and "LOCAL_RANK" in os.environ:
        return backend or "gloo", DistributedType.MULTI_CPU
    return backend, kind
