"""Rows of the table: each has the arguments of ``bench.gpus.job``; rows of one rank share the GPUs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    command: str
    """Arguments of ``bench.gpus.job``; with ``--tiny`` it runs the smallest shape on the CPU."""
    seconds: int
    """Estimated seconds on H200s, including process startup. A row that takes three times as long is stopped."""
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """Return the command as words."""
        return shlex.split(self.command)

    @property
    def ranks(self) -> int:
        """Number of ranks, each on its own GPU."""
        words = self.words
        return int(words[words.index("--ranks") + 1]) if "--ranks" in words else 1


TWO = "--ranks 2"
SMALL = "--shape 345M --micro-batch 8"
TENSOR = f"{TWO} --tensor 2"
PIPELINE = f"{TWO} --pipeline 2 --micro-batch 2 --accumulation 8"
ROWS = {
    "one": Row("native", 40),
    "345M-one": Row(f"native {SMALL}", 25),
    # One process with the samples of two ranks: its losses are the reference for the layouts.
    "one-8": Row("native --accumulation 2", 40),
    "one-16": Row("native --micro-batch 2 --accumulation 8", 50),
    "tensor": Row(f"native {TENSOR}", 40),
    "one-of-8-rows": Row("native --micro-batch 8", 40),
    "tensor-8-rows": Row(f"native {TENSOR} --micro-batch 8", 40),
    "zero1": Row(f"native {TWO} --zero 1", 40),
    "pipeline": Row(f"native {PIPELINE}", 40),
    # The last stage also computes the head and the loss, worth about 2 layers; at 345M about 4.
    "pipeline-balanced": Row(f"native {PIPELINE} --arguments '--decoder-first-pipeline-num-layers 13'", 40),
    # With one process on the same micro batches, only the pipeline differs.
    "345M-one-1": Row("native --shape 345M --micro-batch 1 --accumulation 8", 30),
    # Each trains three times: uninterrupted, resumed halfway, eagerly.
    "345M-pipeline-repeats": Row(f"native-repeats {TWO} {SMALL} --pipeline 2 --micro-batch 1 --accumulation 8", 70),
    "345M-tensor-repeats": Row(f"native-repeats {TENSOR} {SMALL}", 60),
    "345M-zero1-repeats": Row(f"native-repeats {TWO} {SMALL} --zero 1", 60),
    "345M-zero3-repeats": Row(f"native-repeats {TWO} {SMALL} --zero 3", 60),
    "345M-tensor": Row(f"native {TENSOR} {SMALL}", 25),
    "345M-pipeline": Row(f"native {TWO} {SMALL} --pipeline 2 --micro-batch 1 --accumulation 8", 30),
    "345M-pipeline-balanced": Row(
        f"native {TWO} {SMALL} --pipeline 2 --micro-batch 1 --accumulation 8"
        " --arguments '--decoder-first-pipeline-num-layers 14'",
        30,
    ),
    "zero3": Row(f"native {TWO} --zero 3", 40),
    "zero1-deepspeed": Row(f"deepspeed-zero1 {TWO}", 40),
    "tensor-megatron": Row(f"megatron-core {TENSOR} --steps 5", 35),
    "zero3-fsdp2": Row(f"fsdp2 {TWO}", 45),
    "tensor-priority": Row(f"native {TENSOR}", 25, {"TORCH_NCCL_HIGH_PRIORITY": "1"}),
    "345M-zero1": Row(f"native {TWO} {SMALL} --zero 1", 20),
    "tensor-channels": Row(f"native {TENSOR}", 20, {"NCCL_MIN_NCHANNELS": "32"}),
    "zero1-ddp": Row(f"ddp-compiled {TWO}", 60),
    "pipeline-interleaved": Row(f"native {PIPELINE} --arguments '--num-layers-per-virtual-pipeline-stage 6'", 30),
    "pipeline-interleaved-balanced": Row(
        f"native {PIPELINE} --arguments '--pipeline-model-parallel-layout Et*6|t*7|t*7|t*4L'", 30
    ),
    "pipeline-megatron": Row(f"megatron-core {PIPELINE} --steps 4", 50),
    "one-minimal": Row("minimal-gpt-compiled", 70),
    "345M-one-minimal": Row(f"minimal-gpt-compiled {SMALL}", 50),
    "345M-zero3": Row(f"native {TWO} {SMALL} --zero 3", 25),
}
"""Rows in the order in which they run."""
