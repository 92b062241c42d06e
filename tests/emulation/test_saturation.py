"""Devices without Inf and NaN: loss scaling that looks for them fails, loss scaling by the overflow flag works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PATCHES = ["overflow_flag_zero_1_2", "overflow_flag_zero_3", "overflow_flag_fp16", "overflow_flag_fp16_norm"]
WITHOUT = [word for name in PATCHES for word in ("--disable", f"deepspeed.{name}")]


@pytest.mark.parametrize(("soc", "variables"), [("910A", {}), ("910B", {"INF_NAN_MODE_FORCE_DISABLE": "1"})])
def test_on_device(emulated, soc, variables):
    file = Path(__file__).parent / "on_device" / "test_saturation.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=ignore", str(file)]
    process = subprocess.run(
        command, cwd=file.parents[3], env=emulated(soc=soc, **variables), capture_output=True, text=True, timeout=200
    )
    assert process.returncode == 0, process.stdout[-6000:] + process.stderr[-2000:]


def test_grad_scaler_and_collectives(job):
    """torch_npu's GradScaler halves its scale twice, and sums of collectives saturate and set the flag."""
    ended = job("saturating.py", nproc=2, INF_NAN_MODE_FORCE_DISABLE="1").check()
    saturated = [["torch.float16", True, 1], ["torch.float32", True, 1]]
    assert ended.recorded == {rank: [["scale", 2.0**28, [1.0] * 4], *saturated] for rank in (0, 1)}


def test_deepspeeds_loss_scaler_reads_the_flag(job):
    """Compared with the emulated 910B, which has Inf: the same steps are skipped, down to the same scale."""
    expected = job("overflowing.py", nproc=2).check().recorded
    found = job("overflowing.py", nproc=2, device="npu-emulated:910A").check().recorded
    assert expected[0][5][2] > 0  # steps are skipped at all
    assert found == expected


@pytest.mark.every_case
def test_without_the_patches_it_takes_every_step(job):
    ended = job("overflowing.py", device="npu-emulated:910A", options=WITHOUT).check()
    assert {(scale, skipped) for _, scale, skipped in ended.recorded[0]} == {(2.0**20, 0)}
