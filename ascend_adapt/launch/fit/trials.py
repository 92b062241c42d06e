"""One trial of --fit: runs the job at full size with a changed configuration, and reads its measurements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_adapt import regular_files

GIB = 1 << 30
_UNLIMITED = 1 << 40
"""Device memory of a trial in bytes, larger than any setting needs, so that the true peak is measured."""


@dataclass(frozen=True)
class Measured:
    """Measurements of a trial; memory in bytes, of the rank that used the most."""

    peak: int = 0
    reserved: int = 0
    recomputed: float = 0.0
    """Share of a step's floating-point operations that recomputes the forward pass."""
    bytes_moved: int = 0
    """Bytes that all collectives of one rank move in a step."""
    refused_on: int = 0
    """Size in GiB of the device on which the job did not fit because of fragmentation."""
    failed: str = ""
    """Why the job ended early, or ""."""

    def fits(self, gib: int) -> str:
        """Return ``yes``, ``no``, ``fragments`` (the peak fits, reserved memory does not), or ``?`` after a failure."""
        if self.failed:
            return "?"
        if gib <= self.refused_on:
            return "no"
        return "yes" if self.reserved <= gib * GIB else "fragments" if self.peak <= gib * GIB else "no"


def run(
    options: Sequence[str], command: Sequence[str], folder: Path, environ: Mapping[str, str], gib: int = 0
) -> Measured:
    """Run a job on devices of ``gib`` GiB (0 for unlimited memory), with its output in ``folder``."""
    memory = gib * GIB or _UNLIMITED
    words = [sys.executable, "-m", "ascend_adapt.launch.cli", "--log-dir", str(folder), *options, *command]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output.log").open("w") as output:
        ended = subprocess.run(
            words,
            env={**environ, "ASCEND_ADAPT_EMULATED_MEMORY": str(memory)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return _measured(folder, ended.returncode)


def _measured(folder: Path, code: int) -> Measured:
    path = folder / "rehearsal.json"
    ranks = json.loads(regular_files.read_text(path))["ranks"].values() if path.exists() else ()
    facts = [one["full_size"] for one in ranks if one.get("full_size")]
    devices = [device for one in facts for device in one["memory"].values()]
    refused = [device["refused"] for device in devices if device["refused"] is not None]
    if refused:
        return Measured(failed=f"out of memory at {refused[0]['line']}")
    if code or not devices or not all(one["of_one_step"] for one in facts):
        return Measured(failed=_cause(folder / "output.log", code))
    flops = sum(one["flops"] for one in facts)
    return Measured(
        peak=max(map(_total, devices)),
        reserved=max(_total(device, "reserved_peak") for device in devices),
        recomputed=sum(one["recomputed_flops"] for one in facts) / flops if flops else 0.0,
        bytes_moved=max(sum(kind["bytes"] for kind in one["collectives"]) for one in facts),
    )


def _total(device: Mapping[str, Any], kind: str = "allocated_peak") -> int:
    return int(device[kind]) + int(device["by_purpose"].get("communication buffers", 0))


def _cause(log: Path, code: int) -> str:
    """Return the last line of a log that reports an error."""
    lines = regular_files.read_text(log, errors="replace").splitlines()
    named = [line for line in lines if "Error: " in line or (code == 2 and line.startswith("ascend-run: "))]
    ended = f"ended with exit code {code}" if code else "ended without an optimizer step"
    cause = named[-1].rpartition("]: ")[2].strip() if named else ended
    return f"{cause[:160]} ({os.path.relpath(log)})"
