"""A release of DeepSpeed that no environment here has, run from its source archive: what only that one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_adapt.testing.releases import Releases, ReleaseUnreachable

ROOT = Path(__file__).parents[2]
RELEASES = Releases(ROOT / ".releases")
JOB = ROOT / "tests" / "jobs" / "bf16_resumed.py"


def resumed(folder: Path, *options: str) -> tuple[float, str]:
    """Resume bf16 without ZeRO on DeepSpeed 0.18.4; return how far a step then is from the run's own, and all output.

    A step with a learning rate of 0.01 moves a weight by about as much; the weights of two beginnings are 0.3 apart.
    """
    try:
        tree = RELEASES.tree("deepspeed", "0.18.4")
    except ReleaseUnreachable as error:
        pytest.skip(f"not checked: {error}")
    environ = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--device", "cpu", "--log-dir", str(folder / "run")]
    job = subprocess.run(
        [*command, *options, str(JOB), str(folder / "saved")],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert job.returncode == 0, job.stderr[-3000:]
    reported = next(json.loads(line) for line in job.stdout.splitlines() if line.startswith('{"deepspeed": "0.18.4'))
    apart = max(abs(one - other) for one, other in zip(reported["on"][0], reported["resumed"][0], strict=True))
    return apart, job.stdout + job.stderr


def test_bf16_without_zero_resumes_from_the_saved_weights(tmp_path):
    apart, output = resumed(tmp_path)
    assert apart < 0.03
    assert "mp_rank_00_model_states.pt: has no optimizer states" in output


@pytest.mark.every_case
def test_without_the_patch_it_resumes_from_its_initial_weights(tmp_path):
    apart, output = resumed(tmp_path, "--disable", "deepspeed.refresh_master_weights")
    assert apart > 0.2
    assert "has no optimizer states" not in output
