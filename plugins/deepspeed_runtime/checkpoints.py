"""Checkpoints of DeepSpeed's own, on a torch that reads weights only unless it is told otherwise."""

from __future__ import annotations

from ascend_adapt import rewrite

# What DeepSpeed has saved holds its own classes (loss scalers, enums); from 0.16.0 on it says weights_only=False too.
load_whole_checkpoints = rewrite(
    "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine:TorchCheckpointEngine.load",
    old="torch.load(path, map_location=map_location)",
    new="torch.load(path, map_location=map_location, weights_only=False)",
    name="load_whole_checkpoints",
    requires=("deepspeed>=0.7,<0.16", "torch>=2.6"),
    why="torch 2.6 reads weights only by default, and refuses the classes of DeepSpeed's own in its checkpoints",
    until="support for DeepSpeed 0.15 ends",
    without="crash",
)

PATCHES = (load_whole_checkpoints,)
