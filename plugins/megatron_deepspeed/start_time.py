"""All-reduce of the start time of the earliest rank, which training reduces in float64."""

from __future__ import annotations

from ascend_adapt import rewrite

from ..code_bases import MEGATRON_DEEPSPEED

integer_start_time = rewrite(
    "megatron.training:pretrain",
    old="get_accelerator().DoubleTensor([_TRAIN_START_TIME])",
    new="get_accelerator().LongTensor([int(_TRAIN_START_TIME)])",
    name="integer_start_time",
    host=MEGATRON_DEEPSPEED,
    devices="npu",
    why="HCCL does not reduce float64; the time is only printed, but float32 would be off by minutes",
    until="HCCL reduces float64",
    without="crash",
)
