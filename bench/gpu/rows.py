"""Rows of the table: each runs a module of ``bench.gpu`` with arguments in its own process."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from bench.gpu import memory


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    command: str
    """A module of ``bench.gpu`` and its arguments; with ``--tiny`` it runs the smallest shapes on the CPU."""
    seconds: int
    """Estimated seconds on one H200, including process startup. A row that takes four times as long is stopped."""

    @property
    def words(self) -> list[str]:
        """Return the module and its arguments as words."""
        module, *arguments = shlex.split(self.command)
        return [f"bench.gpu.{module}", *arguments]

    @property
    def is_ours(self) -> bool:
        """Whether the row measures this package rather than a peer."""
        return "native" in self.command or "enabled" in self.command


RECOMPUTED = "--arguments '--recompute-granularity full --recompute-method uniform --recompute-num-layers 1'"
OF_20B = "--shape 20B-6 --micro-batch 4"
ROWS = {
    "345M-16": Row("job native --further 60", 32),
    "345M-16-minimal": Row("job minimal-gpt-compiled --further 60", 63),
    "345M-32": Row("job native --micro-batch 32 --further 40", 37),
    "345M-32-minimal": Row("job minimal-gpt-compiled --micro-batch 32 --further 40", 69),
    "345M-16-dropout": Row("job native --dropout 0.1 --further 60", 33),
    # A run with --compile first times both modes, in 32 steps.
    "345M-16-compile": Row("job native-compile --warm-up 40 --further 28", 43),
    "20B": Row(f"job native {OF_20B} --steps 10", 40),
    "20B-accumulated": Row(f"job native {OF_20B} --accumulation 8 --steps 3", 55),
    "20B-recomputed": Row(f"job native {OF_20B} {RECOMPUTED} --steps 8", 45),
    "20B-hf": Row(f"job hugging-face-bf16 {OF_20B} --steps 8", 40),
    "megatron": Row("job megatron-core --dropout 0.1 --steps 10", 35),
    "megatron-enabled": Row("job megatron-core-enabled --dropout 0.1 --steps 10", 40),
    "attention": Row("attention", 40),
    "liger": Row("liger", 45),
    "deepspeed": Row("job deepspeed-zero1 --dropout 0.1 --steps 10", 75),
    "deepspeed-enabled": Row("job deepspeed-zero1-enabled --dropout 0.1 --steps 10", 40),
    "nanogpt": Row("nanogpt", 185),
    "nanogpt-compiled": Row("nanogpt --compile", 240),
    "resume": Row("resume", 80),
    "softmax": Row("softmax", 40),
    "deepspeed-compiled": Row("job deepspeed-zero1-compiled --dropout 0.1 --steps 10", 70),
    "deepspeed-compiled-enabled": Row("job deepspeed-zero1-compiled-enabled --dropout 0.1 --steps 10", 75),
    "345M-16-hf": Row("job hugging-face-compiled", 60),
    "20B-hf-compiled": Row(f"job hugging-face-bf16-compiled {OF_20B} --steps 8", 65),
    **{f"memory-{name}": Row(f"memory {name}", 25 if "345M" in name else 35) for name in memory.JOBS},
    "own-nanogpt": Row("own_scripts nanoGPT", 90),
    "own-nanogpt-compiled": Row("own_scripts nanoGPT-bf16-compile", 150),
    "own-run-clm": Row("own_scripts transformers-run_clm", 90),
    "own-trl": Row("own_scripts trl-sft", 110),
    "own-accelerate": Row("own_scripts accelerate-nlp_example", 90),
    "own-mnist": Row("own_scripts pytorch-mnist", 70),
    "own-mingpt": Row("own_scripts minGPT-chargpt", 80),
}
"""Rows in the order in which they run; the rows that performance targets refer to come first."""
