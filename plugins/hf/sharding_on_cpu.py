"""Fixes for FSDP requested in a job on CPUs, where accelerate uses DistributedDataParallel instead.

Source: accelerate 1.11 and 1.15. Sharding on CPUs is not an option: with torch 2.13's FSDP (version 1) on
gloo the losses are correct, but gathering the full state dict ends in a segmentation fault without our patch.
"""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, rewrite, wrap

fsdp_sync_module_states_on_cpu = rewrite(
    "accelerate.utils.dataclasses:FullyShardedDataParallelPlugin.__post_init__",
    old="""raise RuntimeError(
        "There are currently no available devices found, must be one of 'XPU', 'CUDA', 'MLU', 'NPU', 'MUSA', or 'HPU'."
    )""",
    new="device = 'cpu'",
    name="fsdp_sync_module_states_on_cpu",
    requires="accelerate>=1.5",
    devices="cpu",
    why="sync_module_states raises an error without an accelerator, and Trainer's --fsdp sets it",
    until="accelerate's FSDP plugin accepts a CPU",
    without="crash",
)


@wrap(
    "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel.set_state_dict_type",
    devices="cpu",
    why="on a CPU, accelerate does not shard the model, and leaving FSDP.state_dict_type(model) restores type None",
    until="torch can leave that context without an FSDP module",
    without="crash",
    symptom=Symptom(reason="state_dict_type restores the result of set_state_dict_type, which is None here"),
)
def fsdp_state_dict_type_on_cpu(call: Call) -> Any:
    """Do nothing if the type to restore is None, because no module is sharded."""
    return None if call["state_dict_type"] is None else call.proceed()
