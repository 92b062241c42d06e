"""torch_npu's transfer_to_npu together with our patches, in every order, on an emulated NPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from upstream_job import apart

JOBS = Path(__file__).parent / "jobs"


@pytest.fixture(scope="session")
def run(emulated):
    """run("ours", "theirs"): the values that the job records; without "ours" there are no patches."""

    def start(*order: str) -> list:
        command = [sys.executable, "-W", "ignore", str(JOBS / "beside_transfer_to_npu.py"), *order]
        ended = subprocess.run(command, env=emulated(), capture_output=True, text=True, timeout=280)
        assert ended.returncode == 0, ended.stderr[-3000:]
        return [json.loads(line)["recorded"] for line in ended.stdout.splitlines() if line.startswith('{"recorded":')]

    return start


@pytest.fixture(scope="session")
def alone(run):
    """The losses without our patches."""
    return run("theirs")[0]


@pytest.mark.parametrize("order", [("theirs", "ours"), ("ours", "theirs", "ours")])
def test_either_may_come_first(run, alone, order):
    losses, states, beside = run(*order)
    assert apart(losses, alone) < 1e-5
    assert losses[-1] < losses[0]
    assert not {"failed", "drifted", "lost"} & set(states.values()), states
    assert {states[f"hf.{name}"] for name in ("gelu_in_one_operation", "fused_attention", "loss_without_a_copy")} == {
        "applied"
    }
    assert beside == ["transfer_to_npu"]
