"""Blocks that torch.compile made code of, and where it is refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from native.conftest import LOSS_GROWTH, NORM_GROWTH, one_process
from native.small_models import GPT2, LENGTH, batch, config
from native.training_bounds import apart
from torch.testing._internal.distributed.fake_pg import FakeStore

from ascend_adapt.config.model_config import Init
from ascend_adapt.errors import TrainingError
from ascend_adapt.native import device as devices
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear, TensorParallel
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


@pytest.fixture
def group_of_two():
    """A process group whose other rank does not exist: its collectives compute nothing."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("axis", [None, 0, 1], ids=["all-reduce", "rows", "positions"])
def test_layers_of_tensor_parallel_ranks_are_one_graph(group_of_two, axis):
    """Between graphs a block would be as slow as without the compiler."""
    torch._dynamo.reset()
    tp = TensorParallel(group_of_two, 2, 0, axis is not None, axis or 0)
    first = ColumnParallelLinear(tp, 8, 16, bias=True, init=Init(), enters=True)
    second = RowParallelLinear(tp, 16, 8, bias=True, init=Init())
    layers = torch.compile(torch.nn.Sequential(first, second), backend="aot_eager", fullgraph=True)
    x = torch.ones(2, 2, 8, requires_grad=True)
    layers(x).sum().backward()
    assert x.grad.shape == x.shape


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
