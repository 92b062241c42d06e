"""nanoGPT 124M under ``ascend-run`` compared with the same command without it: an unmodified program.

A clone of github.com/karpathy/nanoGPT (3adf61e) in the folder ``ASCEND_ADAPT_UPSTREAMS``, its own settings for GPT-2
124M, micro batch 12, no accumulation, 50 iterations. Step times are those that it prints, medians after ten iterations.
``python -m bench.gpu.nanogpt [--compile] [--tiny]``
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
SKIPPED = 10
TINY = ["--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=2", "--max_iters=15"]


def checkout() -> Path:
    """Return the folder of nanoGPT."""
    folder = Path(os.environ.get("ASCEND_ADAPT_UPSTREAMS", ".")) / "nanoGPT"
    if not (folder / "train.py").is_file():
        sys.exit(f"{folder}: has no train.py, expected a clone of nanoGPT — set ASCEND_ADAPT_UPSTREAMS to its parent")
    return folder


def run(folder: Path, adapted: bool, words: list[str]) -> tuple[list[float], float]:
    """Train; return the losses and the median milliseconds of an iteration."""
    launcher = ["-m", "ascend_adapt.launch.cli", "--log-dir", str(folder / "run")] if adapted else []
    ended = subprocess.run(
        [sys.executable, *launcher, "train.py", *words], cwd=folder, capture_output=True, text=True, errors="replace"
    )
    lines = ITERATION.findall(ended.stdout)
    if ended.returncode or len(lines) <= SKIPPED:
        sys.exit(f"nanoGPT {'under ascend-run' if adapted else 'plain'}: {ended.stdout[-500:]}{ended.stderr[-1500:]}")
    return [float(loss) for loss, _ in lines], statistics.median(float(time) for _, time in lines[SKIPPED:])


def main() -> None:
    """Run both sides in turn, twice if they are eager."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    words = ["--dataset=bench", "--gradient_accumulation_steps=1", "--eval_iters=1", "--eval_interval=1000"]
    words += ["--max_iters=50", f"--compile={options.compile}"]
    if options.tiny:
        words += ["--device=cpu", "--dtype=float32", *TINY]
    import numpy as np

    sides: dict[bool, list[tuple[list[float], float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as name:
        folder, source = Path(name), checkout()
        for script in ("train.py", "model.py", "configurator.py"):
            shutil.copy(source / script, folder)
        data = folder / "data" / "bench"
        data.mkdir(parents=True)
        ids = np.random.default_rng(0).integers(0, 50257, 1 << 20, dtype=np.uint16)
        for part in ("train", "val"):
            ids.tofile(data / f"{part}.bin")
        for _ in range(1 if options.compile else 2):
            for adapted, runs in sides.items():
                runs.append(run(folder, adapted, words))
    plain, ours = (min(milliseconds for _, milliseconds in sides[adapted]) for adapted in (False, True))
    (losses, _), (adapted_losses, _) = sides[False][0], sides[True][0]
    apart = max(abs(one - other) for one, other in zip(losses, adapted_losses, strict=True))
    every = [[round(milliseconds, 2) for _, milliseconds in sides[adapted]] for adapted in (False, True)]
    details = f"{plain:.2f} and {ours:.2f} ms; every run {every}; {len(losses)} losses within {apart:g}"
    kind = "compiled" if options.compile else "eager"
    report("nanoGPT 3adf61e", [Compared(f"nanoGPT {kind}: step time over plain", ours / plain, "<= 1.01", details)])


if __name__ == "__main__":
    main()
