"""TORCH_FORCE_WEIGHTS_ONLY_LOAD=1: checkpoints that the installed DeepSpeed writes load, and one with code does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TRAIN = """
import os, sys
import ascend_adapt
if "plain" not in sys.argv:
    ascend_adapt.enable(device="cpu")
import torch, deepspeed

def engine(stage, bf16):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    config = {"train_batch_size": 4, "zero_optimization": {"stage": stage}, "bf16": {"enabled": bf16}}
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 0.1, "torch_adam": True}}
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]

def step(one):
    loss = one(torch.ones(4, 8, dtype=next(one.parameters()).dtype)).float().square().mean()
    one.backward(loss)
    one.step()
    return loss.item()

for stage, bf16 in ((0, False), (1, True), (2, False), (3, True)):
    folder = f"{sys.argv[1]}/{stage}"
    first = engine(stage, bf16)
    step(first)
    first.save_checkpoint(folder, client_state={"iteration": 1})
    expected = step(first)
    second = engine(stage, bf16)
    path, client = second.load_checkpoint(folder)
    assert client["iteration"] == 1
    assert step(second) == expected, stage
    print("loaded", stage)

class Payload:
    def __reduce__(self):
        return os.mkdir, (f"{sys.argv[1]}/it-ran",)

torch.save({"module": Payload()}, f"{path}")
second.load_checkpoint(folder)
"""


@pytest.fixture
def run(tmp_path):
    def run(*words, **environ):
        rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        environ = {**os.environ, "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(tmp_path), **rank, **environ}
        command = [sys.executable, "-c", TRAIN, str(tmp_path), *words]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280)

    return run


def test_what_deepspeed_saves_loads_and_a_payload_does_not_run(run, tmp_path):
    job = run(TORCH_FORCE_WEIGHTS_ONLY_LOAD="1")
    assert [line for line in job.stdout.splitlines() if line.startswith("loaded")] == [
        f"loaded {n}" for n in range(4)
    ], job.stderr
    assert job.returncode == 1
    assert (
        "names posix.mkdir, expected tensors, plain data and the classes that the code base itself saves" in job.stderr
    )
    assert not (tmp_path / "it-ran").exists()
