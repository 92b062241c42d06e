"""nanoGPT 124M, unmodified, under ``ascend-run`` compared with torchrun and with the script alone.

Under either launcher nanoGPT finds RANK and wraps its model in DDP, even on one rank, so torchrun is the peer. The
script alone shows what DDP costs.

Needs a clone of github.com/karpathy/nanoGPT (3adf61e) in the folder ``ASCEND_ADAPT_UPSTREAMS``. It uses nanoGPT's
settings for GPT-2 124M, micro batch 12, no accumulation, 120 iterations. Step times are the printed ones: medians after
20 iterations, from alternating runs. ``python -m bench.gpu.nanogpt [--compile] [--tiny]``
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.gpu.comparison import Compared, report

ITERATION = re.compile(r"^iter \d+: loss (\S+), time (\S+)ms", re.MULTILINE)
SKIPPED = 20
TINY = ["--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=2", "--max_iters=25"]


def checkout() -> Path:
    """Return the folder of nanoGPT."""
    folder = Path(os.environ.get("ASCEND_ADAPT_UPSTREAMS", ".")) / "nanoGPT"
    if not (folder / "train.py").is_file():
        sys.exit(f"{folder}: has no train.py, expected a clone of nanoGPT — set ASCEND_ADAPT_UPSTREAMS to its parent")
    return folder


def run(folder: Path, launcher: list[str], words: list[str]) -> tuple[list[float], float]:
    """Train nanoGPT; return the losses and the median milliseconds of an iteration."""
    ended = subprocess.run(
        [sys.executable, *launcher, "train.py", *words], cwd=folder, capture_output=True, text=True, errors="replace"
    )
    lines = ITERATION.findall(ended.stdout)
    if ended.returncode or len(lines) <= SKIPPED:
        sys.exit(f"nanoGPT {launcher or 'alone'}: {ended.stdout[-500:]}{ended.stderr[-1500:]}")
    return [float(loss) for loss, _ in lines], statistics.median(float(time) for _, time in lines[SKIPPED:])


def main() -> None:
    """Run the sides alternately and compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    words = ["--dataset=bench", "--gradient_accumulation_steps=1", "--eval_iters=1", "--eval_interval=1000"]
    words += ["--max_iters=120", f"--compile={options.compile}"]
    if options.tiny:
        words += ["--device=cpu", "--dtype=float32", *TINY]
    import numpy as np

    with tempfile.TemporaryDirectory() as name:
        folder, source = Path(name), checkout()
        for script in ("train.py", "model.py", "configurator.py"):
            shutil.copy(source / script, folder)
        data = folder / "data" / "bench"
        data.mkdir(parents=True)
        ids = np.random.default_rng(0).integers(0, 50257, 1 << 20, dtype=np.uint16)
        for part in ("train", "val"):
            ids.tofile(data / f"{part}.bin")
        launchers = {
            "alone": [],
            "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"],
            "ascend-run": ["-m", "ascend_adapt.launch.cli", "--log-dir", str(folder / "run")],
        }
        if options.tiny:
            del launchers["torchrun"]  # nanoGPT's DDP requires GPUs
        runs: dict[str, list[tuple[list[float], float]]] = {side: [] for side in launchers}
        for _ in range(1 if options.tiny else 2 if options.compile else 3):
            for side, launcher in launchers.items():
                runs[side].append(run(folder, launcher, words))
    fastest = {side: min(milliseconds for _, milliseconds in each) for side, each in runs.items()}
    losses = {side: each[0][0] for side, each in runs.items()}
    every = {side: [round(milliseconds, 2) for _, milliseconds in each] for side, each in runs.items()}

    def beside(peer: str, wanted: str) -> Compared:
        apart = max(abs(one - other) for one, other in zip(losses[peer], losses["ascend-run"], strict=True))
        details = f"every run, ms: {every}; {len(losses[peer])} losses within {apart:g}"
        return Compared(f"nanoGPT {kind}: step over {peer}", fastest["ascend-run"] / fastest[peer], wanted, details)

    kind = "compiled" if options.compile else "eager"
    wanted = {"torchrun": "<= 1.01", "alone": ""}
    report("nanoGPT 3adf61e", [beside(peer, text) for peer, text in wanted.items() if peer in launchers])


if __name__ == "__main__":
    main()
