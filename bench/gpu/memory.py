"""Predicted peak memory of jobs at full size, compared with torch's own allocator on a GPU.

``python -m bench.gpu.memory predict [JOB ...]`` runs jobs on the emulated NPU of a CPU (``--full-size``), and adds each
peak to ``predicted_memory.json`` as soon as it is known. ``python -m bench.gpu.memory JOB [--tiny]`` is a row of
``bench.gpu``: it trains the same job on the GPU and prints measured / predicted. Steps are not CUDA graphs there: the
memory of a graph stays reserved, and its allocations are not counted. Peers run under ``enable()`` on the GPU, because
``ascend-run`` adapts them on the NPU. Jobs ``*-reference`` use the reference of every kernel on both sides, so that the
same buffers are allocated; the others use each device's own kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ascend_adapt.kernels import requests
from bench.gpu import command_line
from bench.gpu.comparison import Compared, report

PREDICTED = Path(__file__).with_name("predicted_memory.json")
WITHIN = 0.05
STEPS = ["--steps", "2", "--warm-up", "1"]
RECOMPUTED = "--arguments=--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
SHAPES = {"345M": ["--shape", "345M", "--micro-batch", "16"], "1.3B": ["--shape", "1.3B", "--micro-batch", "4"]}
KINDS = {
    "native": ["native"],
    "native-recomputed": ["native", RECOMPUTED],
    "native-zero3": ["native", "--zero", "3"],
    "native-zero3-recomputed": ["native", "--zero", "3", RECOMPUTED],
    "hugging-face": ["hugging-face-bf16"],
    "megatron-core": ["megatron-core"],
    "deepspeed-zero1": ["deepspeed-zero1"],
}
REFERENCE = "-reference"
JOBS = {
    f"{kind}-{shape}{kernels}": [*words, *of_shape, *STEPS]
    for kernels in ("", REFERENCE)
    for shape, of_shape in SHAPES.items()
    for kind, words in KINDS.items()
}


def environment(name: str) -> dict[str, str]:
    """Return the variables of a job on both sides."""
    chosen = {"ASCEND_ADAPT_STEP_GRAPH": "0"}
    if name.endswith(REFERENCE):
        chosen[requests.VARIABLE] = ",".join(f"{kernel}:reference" for kernel in requests.NAMES)
    return {**os.environ, **chosen}


def measured_words(name: str) -> list[str]:
    """Return the arguments of ``bench.gpu.job`` on the GPU."""
    side, *others = JOBS[name]
    return [side if side == "native" else f"{side}-enabled", *others]


def predict(names: list[str]) -> None:
    """Predict the peaks of jobs that have none yet, or of the given ones."""
    known: dict[str, float] = json.loads(PREDICTED.read_text()) if PREDICTED.is_file() else {}
    for name in names or [name for name in JOBS if name not in known]:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", "npu-emulated", "--full-size"]
            words += ["--memory", "139", "--log-dir", f"{folder}/run", "-m", "bench.gpu.job", *JOBS[name]]
            ended = subprocess.run(words, capture_output=True, text=True, errors="replace", env=environment(name))
            written = Path(folder) / "run" / "rehearsal.json"
            peak = peak_gib(json.loads(written.read_text())) if written.is_file() else 0.0
        if not peak:
            print(f"{name}: not predicted: {ended.stderr[-500:]}", file=sys.stderr)
            continue
        known[name] = peak
        PREDICTED.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
        print(f"{name}: {peak:.2f} GiB", flush=True)


def peak_gib(rehearsal: dict[str, Any]) -> float:
    """Return the peak of tensors on the fullest device of a rehearsal; 0 if it has none."""
    devices = [
        one["allocated_peak"]
        for facts in rehearsal["ranks"].values()
        for one in facts.get("full_size", {}).get("memory", {}).values()
    ]
    return float(max(devices, default=0)) / 2**30


def measure(name: str, *, tiny: bool) -> None:
    """Train a job on the GPU, and report its peak with the prediction."""
    words = [sys.executable, "-m", "bench.gpu.job", *measured_words(name), *["--tiny"] * tiny]
    ended = subprocess.run(words, capture_output=True, text=True, errors="replace", env=environment(name))
    found = command_line.result(ended.stdout, ended.stderr, ended.returncode)
    if "failed" in found:
        sys.exit(f"{name}: {found['failed']}")
    known = json.loads(PREDICTED.read_text()) if PREDICTED.is_file() else {}
    report("torch's allocator", [compared(name, found.get("allocated_gib"), known.get(name))])


def compared(name: str, measured: float | None, predicted: float | None) -> Compared:
    """Return measured / predicted, or why there is none."""
    wanted = f"{1 - WITHIN:.2f} to {1 + WITHIN:.2f}"
    if measured is None or predicted is None:
        which = "measured" if measured is None else "predicted"
        return Compared(f"peak memory of {name}", float("nan"), wanted, f"not {which}")
    details = f"{measured:.2f} GiB, {predicted:.2f} predicted"
    return Compared(f"peak memory of {name}, measured / predicted", measured / predicted, wanted, details)


def main() -> None:
    """Predict, or measure one job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", choices=["predict", *JOBS], metavar="JOB")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    if asked.jobs[0] == "predict":
        predict(asked.jobs[1:])
    else:
        measure(asked.jobs[0], tiny=asked.tiny)


if __name__ == "__main__":
    main()
