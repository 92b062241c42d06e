"""Groups of host memory on an NPU. Source: torch_npu 2.13 _compat/distributed.py, torch 2.13 distributed_c10d.py."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap


@wrap(
    "torch.distributed.distributed_c10d:_new_group_with_tag",
    devices="npu",
    why="init_process_group(device_id=) also binds groups with gloo to the NPU, for which they have no backend",
    until="torch looks up the backend of the bound device only in groups that have one",
    without="crash",
    symptom=Symptom("device_id = default_pg.bound_device_id"),
)
def gloo_groups_without_bound_device(call: Call) -> Any:
    """Create a group with gloo as if the default group were not bound to a device."""
    import torch.distributed as dist

    default = dist.group.WORLD
    bound = getattr(default, "bound_device_id", None)
    if bound is None or call["backend"] != "gloo":
        return call.proceed()
    default.bound_device_id = None
    try:
        return call.proceed()
    finally:
        default.bound_device_id = bound
