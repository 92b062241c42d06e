"""Ordinary DeepSpeed jobs on old, middle and new releases, on CPU with gloo: what runs, and with which numbers.

`make test` has 0.9.2, 0.14.5 and the newest; `make behaviour` (nox) all. TABLE says what each release does, and is
checked in both directions: what runs must have the losses it names, what does not must fail for the reason it gives.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "tests" / "jobs"
NEWEST = "0.19.8"
# Releases before 0.9.2 have no environment: see docs/conformance.md.
RELEASES = ("0.9.2", "0.11.1", "0.12.6", "0.14.5", "0.16.9", NEWEST)
IN_CI = ("0.9.2", "0.14.5", NEWEST)
COMMANDS = {
    "pipeline": ("2", "pipeline.py", "{folder}"),
    "masked pipeline": ("4", "masked_pipeline.py"),
    "zero 1": ("2", "zero.py", "1", "{folder}"),
    "zero 2": ("2", "zero.py", "2", "{folder}"),
    "zero 3": ("2", "zero.py", "3", "{folder}"),
}


@dataclass(frozen=True)
class Runs:
    """It runs; ``like`` names the release whose losses it has, bit for bit."""

    like: str = NEWEST


@dataclass(frozen=True)
class Fails:
    """It does not run: ``text`` is in what it prints."""

    text: str


# Adam is made with a step on gradients of zero, so its bias correction is one step ahead; later releases do not.
ONE_STEP_AHEAD = Runs(like="0.9.2")
TABLE: dict[str, dict[str, Runs | Fails]] = {}


def environment(release: str) -> Path:
    return ROOT / (".venv" if release == NEWEST else f".nox/deepspeed-{release.replace('.', '-')}")


@functools.cache
def run(release: str, job: str, folder: Path) -> tuple[int, dict[str, object], str]:
    """Run a job; return its exit code, what its last rank printed, and everything else it did."""
    nproc, script, *arguments = (word.format(folder=folder / "checkpoint") for word in COMMANDS[job])
    command = [environment(release) / "bin" / "ascend-run", "--nproc", nproc, "--device", "cpu"]
    command += ["--log-dir", folder / "run", JOBS / script, *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(folder / "extensions")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environ, cwd=folder)
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"deepspeed"')]
    return done.returncode, printed[0] if printed else {}, done.stdout + done.stderr
