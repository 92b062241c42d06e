"""CPU overhead of a training step, compared with another checkout of this project, as ratios on a CPU.

``python bench/native_host.py CHECKOUT`` trains a model with the depth of GPT-2 345M and tensors so small that a step is
almost only CPU overhead: 24 layers, hidden size 16, 8 tokens. Both sides alternate, each round in its own process. The
value of a round is the median of its CPU seconds; the value of a side is its fastest round, because other load only
adds time. Of two ranks only one runs, and its collectives return at once (torch's fake process group), because gloo's
CPU work differs from that of a GPU backend.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]
WARM_UP, STEPS = 5, 30


@dataclass(frozen=True)
class Kind:
    """One kind of run; its number of ranks follows from its parallelism."""

    dtype: str = "bf16"
    micro_batches: int = 1
    tensor: int = 1
    data: int = 1
    zero_stage: int = 0
    dropout: float = 0.0

    @property
    def config(self) -> Any:
        """The configuration of this kind of run."""
        from ascend_adapt.recipes import dialects

        words = "--num-layers 24 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
        words += "--micro-batch-size 1 --train-iters 10 --lr 1e-3 --vocab-size 96 --make-vocab-size-divisible-by 1 "
        words += "--clip-grad 1.0 --data-path none --split 1,0,0 --eval-iters 0 "
        words += f"--hidden-dropout {self.dropout} --attention-dropout {self.dropout} "
        words += f"--tensor-model-parallel-size {self.tensor} --global-batch-size {self.micro_batches * self.data}"
        arguments = [*words.split(), *(["--bf16"] if self.dtype == "bf16" else [])]
        config, _ = dialects.read("megatron", arguments).build(self.tensor * self.data)
        return replace(config, parallel=replace(config.parallel, zero_stage=self.zero_stage))


KINDS = {
    "fp32": Kind("fp32"),
    "bf16": Kind(),
    "bf16, 4 micro batches": Kind(micro_batches=4),
    "bf16, dropout": Kind(dropout=0.1),
    "tensor 2, bf16, dropout": Kind(tensor=2, dropout=0.1),
    **{f"data 2, ZeRO-{stage}, bf16": Kind(data=2, zero_stage=stage) for stage in range(4)},
    "data 2, ZeRO-1, bf16, 4 micro batches": Kind(data=2, zero_stage=1, micro_batches=4),
}


def measure() -> dict[str, float]:
    """Return the median seconds of a step for each kind of run."""
    import torch

    torch.set_num_threads(1)
    if find_spec("ascend_adapt.config.buckets"):  # older checkouts do not have it
        import_module("ascend_adapt.config.buckets").BUCKET = 17_000  # five blocks, as of GPT-2 345M
    return {name: median_seconds(kind) for name, kind in KINDS.items()}


def median_seconds(kind: Kind) -> float:
    """Return the median CPU seconds of a step of one rank."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from ascend_adapt.native.parallel import mesh as meshes
    from ascend_adapt.native.step.trainer import Trainer

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=kind.tensor * kind.data)
    trainer = Trainer(kind.config, meshes.build(kind.config.parallel, torch.device("cpu")))
    ids = torch.randint(0, 90, (kind.micro_batches, 9), generator=torch.Generator().manual_seed(0))
    batch = {"tokens": ids[:, :-1], "labels": ids[:, 1:], "loss_mask": torch.ones(kind.micro_batches, 8)}
    seconds = []
    for _ in range(WARM_UP + STEPS):
        began = time.process_time()
        trainer.step(batch, kind.micro_batches, 1e-3, 0.1)
        seconds.append(time.process_time() - began)
    dist.destroy_process_group()
    return statistics.median(seconds[WARM_UP:])


def turn(checkout: Path) -> dict[str, float]:
    """Measure a checkout in its own process."""
    environ = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "ASCEND_ADAPT_DEVICE": "cpu"}
    ended = subprocess.run(
        [sys.executable, __file__, "--turn", str(checkout)], capture_output=True, text=True, env=environ
    )
    if ended.returncode:
        sys.exit(f"{ended.stderr[-3000:]}\nbench/native_host.py: {checkout} ended with {ended.returncode}")
    seconds: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="the checkout to compare with")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--turn", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        import ascend_adapt

        if Path(ascend_adapt.__file__).resolve().parents[1] != options.checkout.resolve():
            sys.exit(
                f"ascend_adapt: is {ascend_adapt.__file__}, expected the package in {options.checkout} — pass a "
                "checkout"
            )
        print(json.dumps(measure()))
        return
    sides: dict[str, list[dict[str, float]]] = {"that checkout": [], "this": []}
    for _ in range(options.turns):
        for side, checkout in zip(sides, (options.checkout, HERE), strict=True):
            sides[side].append(turn(checkout.resolve()))
    table = Table(title="a step of 24 small layers on a CPU, CPU ms")
    for column in ("", *sides, "ratio"):
        table.add_column(column)
    for kind in KINDS:
        before, now = (min(each[kind] for each in turns) * 1e3 for turns in sides.values())
        table.add_row(kind, f"{before:.1f}", f"{now:.1f}", f"{now / before:.2f}x")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
