"""What the native trainer's host does for a step, beside another checkout of this project: ratios, on a CPU.

``python bench/native_host.py CHECKOUT`` trains a model of GPT-2 345M's depth whose tensors are so small that a step is
the host's work and little else: 24 layers, hidden size 16, 8 tokens. Both sides take turns, each turn in a process of
its own; of a turn the median of the processor's seconds counts, which others that are busy there disturb least.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]
WARM_UP, STEPS = 5, 30
KINDS = {"fp32": ("fp32", 1), "bf16": ("bf16", 1), "bf16, 4 micro batches": ("bf16", 4)}


def configuration(dtype: str, micro_batches: int) -> Any:
    """Return a run of the small model on one rank."""
    from ascend_adapt.recipes import dialects

    words = "--num-layers 24 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
    words += "--micro-batch-size 1 --train-iters 10 --lr 1e-3 --vocab-size 96 --make-vocab-size-divisible-by 1 "
    words += "--hidden-dropout 0 --attention-dropout 0 --clip-grad 1.0 --data-path none --split 1,0,0 --eval-iters 0"
    told = [*words.split(), "--global-batch-size", str(micro_batches)]
    config, _ = dialects.read("megatron", [*told, "--bf16"] if dtype == "bf16" else told).build(1)
    return config


def measure() -> dict[str, float]:
    """Return the median seconds of a step, by kind of run."""
    import torch
    import torch.distributed as dist

    from ascend_adapt.native import mesh as meshes
    from ascend_adapt.native.trainer import Trainer

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    told = {}
    for kind, (dtype, micro_batches) in KINDS.items():
        config = configuration(dtype, micro_batches)
        trainer = Trainer(config, meshes.build(config.parallel, torch.device("cpu")))
        ids = torch.randint(0, 90, (micro_batches, 9), generator=torch.Generator().manual_seed(0))
        batch = {"tokens": ids[:, :-1], "labels": ids[:, 1:], "loss_mask": torch.ones(micro_batches, 8)}
        seconds = []
        for _ in range(WARM_UP + STEPS):
            began = time.process_time()
            trainer.step(batch, micro_batches, 1e-3, 0.1)
            seconds.append(time.process_time() - began)
        told[kind] = statistics.median(seconds[WARM_UP:])
    dist.destroy_process_group()
    return told


def turn(checkout: Path) -> dict[str, float]:
    """Measure a checkout in a process of its own."""
    environ = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "ASCEND_ADAPT_DEVICE": "cpu"}
    ended = subprocess.run(
        [sys.executable, __file__, "--turn", str(checkout)], capture_output=True, text=True, env=environ
    )
    if ended.returncode:
        sys.exit(f"{ended.stderr[-3000:]}\nbench/native_host.py: {checkout} ended with {ended.returncode}")
    told: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="what this one is held against")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--turn", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        import ascend_adapt

        if Path(ascend_adapt.__file__).resolve().parents[1] != options.checkout.resolve():
            sys.exit(f"ascend_adapt: is {ascend_adapt.__file__}, expected that of {options.checkout} — name a checkout")
        print(json.dumps(measure()))
        return
    sides: dict[str, list[dict[str, float]]] = {"that checkout": [], "this": []}
    for _ in range(options.turns):
        for side, checkout in zip(sides, (options.checkout, HERE), strict=True):
            sides[side].append(turn(checkout.resolve()))
    table = Table(title="a step of 24 small layers on a CPU, ms of the processor")
    for column in ("", *sides, "ratio"):
        table.add_column(column)
    for kind in KINDS:
        before, now = (statistics.median(each[kind] for each in turns) * 1e3 for turns in sides.values())
        table.add_row(kind, f"{before:.1f}", f"{now:.1f}", f"{now / before:.2f}x")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
