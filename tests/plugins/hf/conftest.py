"""launch(): a job under ascend-run, on CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

JOBS = Path(__file__).parent / "jobs"


@dataclass(frozen=True)
class Ended:
    """A job that has ended."""

    code: int
    output: str
    run_dir: Path

    @property
    def reported(self) -> list:
        """What each rank printed as JSON."""
        lines = [line for path in sorted(self.run_dir.glob("rank-*.log")) for line in path.read_text().splitlines()]
        return [json.loads(line)["reported"] for line in lines if line.startswith('{"reported":')]

    def outcome(self, patch: str) -> dict:
        """What became of a patch in rank 0."""
        reported = json.loads((self.run_dir / "adapt-status.0.json").read_text())
        (found,) = [one for one in reported["outcomes"] if f"{one['plugin']}.{one['patch']}" == patch]
        return found


@pytest.fixture
def launch(tmp_path):
    """launch("name.py", *options, python_path=): run a script of jobs/ to its end."""

    def run(script: str, *options: str, python_path: str = "") -> Ended:
        run_dir = tmp_path / "run"
        ours = ["--device", "cpu", "--log-dir", str(run_dir), *options]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ASCEND_", "TORCH_DEVICE"))}
        ended = subprocess.run(
            [sys.executable, "-m", "ascend_adapt.launch.cli", *ours, str(JOBS / script)],
            env={**kept, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
        )
        return Ended(ended.returncode, ended.stdout + ended.stderr, run_dir)

    return run
