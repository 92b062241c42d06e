"""accelerate's FSDP (version 1) in a job on CPUs. Source: accelerate 1.11 and 1.15."""

from __future__ import annotations

from ascend_adapt import rewrite

states_are_synchronized_on_cpu = rewrite(
    "accelerate.utils.dataclasses:FullyShardedDataParallelPlugin.__post_init__",
    old="""raise RuntimeError(
        "There are currently no available devices found, must be one of 'XPU', 'CUDA', 'MLU', 'NPU', 'MUSA', or 'HPU'."
    )""",
    new="device = 'cpu'",
    name="states_are_synchronized_on_cpu",
    requires="accelerate>=1.11",
    devices="cpu",
    why="sync_module_states raises without an accelerator, and Trainer's --fsdp sets it",
    until="accelerate's FSDP plugin accepts a CPU",
    without="crash",
)
