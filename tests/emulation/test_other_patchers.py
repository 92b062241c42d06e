"""torch_npu's transfer_to_npu together with our patches, in every order, on an emulated NPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from upstream_job import apart

JOBS = Path(__file__).parent / "jobs"


@pytest.fixture
def run(emulated):
    """run("theirs", "train"): the values that the job records, with these steps."""

    def start(*steps: str) -> list:
        command = [sys.executable, "-W", "ignore", str(JOBS / "beside_transfer_to_npu.py"), *steps]
        ended = subprocess.run(command, env=emulated(), capture_output=True, text=True, timeout=280)
        assert ended.returncode == 0, ended.stderr[-3000:]
        return [json.loads(line)["recorded"] for line in ended.stdout.splitlines() if line.startswith('{"recorded":')]

    return start


def test_either_may_come_first(run):
    alone, *theirs_first = run("theirs", "train", "ours", "train")
    for losses, states, beside in (theirs_first, run("ours", "theirs", "ours", "train")):
        assert apart(losses, alone) < 1e-5
        assert losses[-1] < losses[0]
        assert not {"failed", "drifted", "lost"} & set(states.values()), states
        assert {states[f"hf.{name}"] for name in ("fused_new_gelu", "fused_attention", "loss_without_fp32_copy")} == {
            "applied"
        }
        assert beside == ["transfer_to_npu"]
