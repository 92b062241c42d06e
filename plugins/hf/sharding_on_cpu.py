"""accelerate's FSDP plugin in a job on CPUs, where accelerate itself then uses DistributedDataParallel.

Source: accelerate 1.11 and 1.15. Sharding there as well is no option: with torch 2.13's FSDP (version 1) on gloo the
losses are right, and gathering the full state dict ends in a segmentation fault.
"""

from __future__ import annotations

from ascend_adapt import rewrite

states_are_synchronized_on_cpu = rewrite(
    "accelerate.utils.dataclasses:FullyShardedDataParallelPlugin.__post_init__",
    old="""raise RuntimeError(
        "There are currently no available devices found, must be one of 'XPU', 'CUDA', 'MLU', 'NPU', 'MUSA', or 'HPU'."
    )""",
    new="device = 'cpu'",
    name="states_are_synchronized_on_cpu",
    requires="accelerate>=1.5",
    devices="cpu",
    why="sync_module_states raises without an accelerator, and Trainer's --fsdp sets it",
    until="accelerate's FSDP plugin accepts a CPU",
    without="crash",
)
