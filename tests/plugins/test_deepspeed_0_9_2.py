"""Real DeepSpeed 0.9.2, the release guides pin, in an environment of its own (made by `make test`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "jobs" / "masked_pipeline.py"
OLD, NEW = ROOT / ".nox" / "deepspeed-0-9-2", ROOT / ".venv"


def run(venv, tmp_path, *options):
    """Run the job on two stages x two model-parallel ranks; return (exit code, losses, status of rank 3, stderr)."""
    command = [venv / "bin" / "ascend-run", "--nproc", "4", "--device", "cpu", "--log-dir", tmp_path / "run", *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    job = subprocess.run([*command, JOB], capture_output=True, text=True, timeout=240, env=env, cwd=tmp_path)
    printed = [json.loads(line) for line in job.stdout.splitlines() if line.startswith('{"deepspeed"')]
    status = json.loads((tmp_path / "run" / "adapt-status.3.json").read_text())
    states = {outcome["patch"]: outcome["state"] for outcome in status["outcomes"]}
    return job.returncode, printed[0]["losses"] if printed else None, states, job.stdout + job.stderr


@pytest.fixture(scope="module")
def newest(tmp_path_factory):
    code, losses, states, told = run(NEW, tmp_path_factory.mktemp("newest"))
    assert code == 0, told
    assert states["keep_missing_grads"] == "skipped"
    return losses


def test_the_losses_are_those_of_the_newest_release_bit_for_bit(newest, tmp_path):
    code, losses, states, told = run(OLD, tmp_path)
    assert code == 0, told
    assert losses == newest
    assert states["keep_missing_grads"] == states["cpu_accelerator"] == states["gradients_by_type"] == "applied"
    assert states["numpy_bufsize"] == states["backend_of_the_device"] == "applied"
    assert states["no_shared_memory_build"] == states["elastic_log"] == "skipped"


def test_without_the_patch_the_gradient_is_lost(tmp_path):
    code, losses, states, told = run(OLD, tmp_path, "--disable", "keep_missing_grads")
    assert (code, losses, states["keep_missing_grads"]) == (1, None, "disabled")
    assert "IndexError: tuple index out of range" in told


def test_the_npu_accelerator_fits_the_abstract_one():
    """On a stand-in for torch_npu: names and completeness only, nothing of a device."""
    code = """
import sys, types, torch
npu = types.SimpleNamespace(
    current_device=lambda: 3, FloatTensor="f", default_generators={3: "g"}, Stream="s", Event=object,
    get_device_properties=lambda index: types.SimpleNamespace(total_memory=64 + index),
)
sys.modules["torch_npu"] = types.SimpleNamespace(npu=npu, __spec__=None)
import ascend_adapt
ascend_adapt.enable(device="npu", strict=True)
from deepspeed.accelerator import get_accelerator
found = get_accelerator()
assert type(found).__name__ == "NPU_Accelerator" and not type(found).__abstractmethods__
assert found.communication_backend_name() == "hccl"
assert found.device_name() == "npu" and found.device_name(1) == "npu:1"
assert found.current_device_name() == "npu:3" and found.FloatTensor == "f" and found.Stream == "s"
assert found.default_generator(3) == "g" and found.total_memory() == 67 and found._name == "npu"
from deepspeed.ops.adam import FusedAdam
from deepspeed.ops.op_builder import FusedAdamBuilder
assert FusedAdamBuilder().load().__name__ == "TorchFusedAdam"
"""
    job = subprocess.run([OLD / "bin" / "python", "-c", code], capture_output=True, text=True, timeout=120)
    assert job.returncode == 0, job.stderr
