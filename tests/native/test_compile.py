"""Blocks that torch.compile made code of, and where it is refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from native.conftest import LOSS_GROWTH, NORM_GROWTH, one_process
from native.small_models import GPT2, LENGTH, batch, config
from native.training_bounds import apart

from ascend_adapt.errors import TrainingError
from ascend_adapt.native import device as devices
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step.trainer import Trainer

ALONE = meshes.single(torch.device("cpu"))


# The compiler's own; one that is an error ends it.
@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_learn_what_others_do():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    settings = replace(config(GPT2), compile=True)
    trainer = Trainer(settings, ALONE)
    steps = [trainer.step(batch(number, settings), 8, 3e-3, 0.1) for number in range(3)]
    alone = one_process("gpt2")
    assert [step.loss for step in steps] == pytest.approx(alone.losses[:3], rel=apart(GPT2, LENGTH, LOSS_GROWTH))
    assert [step.grad_norm for step in steps] == pytest.approx(alone.norms[:3], rel=apart(GPT2, LENGTH, NORM_GROWTH))
    # One graph for all layers, whole: what is between graphs would be as slow as before.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    plain = Trainer(config(GPT2), ALONE)
    assert [one.name for one in trainer.parameters] == [one.name for one in plain.parameters]


def test_a_device_without_a_compiler_is_refused_by_name(monkeypatch):
    with pytest.raises(TrainingError, match="--compile on npu: .* expected a CPU or a GPU — leave --compile out"):
        devices.check_compiler(SimpleNamespace(type="npu"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        TrainingError, match=r"--compile on cpu: no-such-compiler is missing, expected a C\+\+ compiler"
    ):
        Trainer(replace(config(GPT2), compile=True), ALONE)
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TrainingError, match="--compile on cuda: triton is not installed"):
        devices.check_compiler(SimpleNamespace(type="cuda"))
