"""Real DeepSpeed 0.9.2, the release guides pin, in an environment of its own (made by `make test`)."""

from __future__ import annotations

import json
import os
import socket
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


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def newest(tmp_path_factory):
    code, losses, states, reported = run(NEW, tmp_path_factory.mktemp("newest"))
    assert code == 0, reported
    assert states["keep_missing_grads"] == "skipped"
    return losses


def test_the_losses_are_those_of_the_newest_release_bit_for_bit(newest, tmp_path):
    code, losses, states, reported = run(OLD, tmp_path)
    assert code == 0, reported
    assert losses == newest
    assert states["keep_missing_grads"] == states["cpu_accelerator"] == states["bucket_gradients_by_dtype"] == "applied"
    assert states["numpy_bufsize"] == states["communication_backend"] == "applied"
    assert states["no_shared_memory_build"] == states["elastic_log"] == "skipped"


@pytest.mark.every_case
def test_without_the_patch_the_gradient_is_lost(tmp_path):
    code, losses, states, reported = run(OLD, tmp_path, "--disable", "keep_missing_grads")
    assert (code, losses, states["keep_missing_grads"]) == (1, None, "disabled")
    assert "IndexError: tuple index out of range" in reported


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
    job = subprocess.run([OLD / "bin" / "python", "-c", code], capture_output=True, text=True, timeout=280)
    assert job.returncode == 0, job.stderr


def test_deepspeeds_report_names_every_builder_that_can_be_made():
    """As bigscience's Megatron-DeepSpeed asks for it when it begins."""
    code = """
import ascend_adapt
ascend_adapt.enable(device="cpu", strict=True)
from deepspeed.env_report import ALL_OPS
print(sorted(ALL_OPS))
"""
    job = subprocess.run([OLD / "bin" / "python", "-c", code], capture_output=True, text=True, timeout=280)
    assert job.returncode == 0, job.stderr
    assert "'fused_adam'" in job.stdout


@pytest.mark.parametrize(("clipping", "reported"), [("1.0e-3", 1), ("0.0", 0)])
def test_clipping_that_zero_skips_is_reported_once(clipping, reported, tmp_path):
    code = f"""
import ascend_adapt
ascend_adapt.enable(device="cpu", strict=True)
import deepspeed, torch
from deepspeed.accelerator import get_accelerator
deepspeed.init_distributed("gloo")
model = torch.nn.Linear(2, 1, bias=False)
start = model.weight.detach().clone()
config = {{"train_batch_size": 1, "zero_optimization": {{"stage": 1}}, "gradient_clipping": {clipping},
          "zero_allow_untested_optimizer": True}}
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config, dist_init_required=False
)
for _ in range(2):
    engine.backward(engine(torch.tensor([[3.0, 4.0]])).sum())
    engine.step()
# 5 long, twice: DeepSpeed's own arithmetic, unclipped, also where clipping is asked for.
print("went", (start - model.weight).norm().item())
"""
    alone = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(free_port()),
    }
    env = {**os.environ, **alone, "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    job = subprocess.run([OLD / "bin" / "python", "-c", code], capture_output=True, text=True, timeout=120, env=env)
    assert job.returncode == 0, job.stderr
    assert "went 10.0" in job.stdout
    warned = job.stdout + job.stderr
    assert (
        warned.count(
            "ascend_adapt: gradient_clipping 0.001: ZeRO-1 and ZeRO-2 of this DeepSpeed only clip float16, not float32"
        )
        == reported
    )
