"""The native trainer on one rank beside two tensor-parallel ranks: their shards are joined, and a fault is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from native.small_models import Case, train
from torch.nn import functional

from ascend_adapt.alignment.recorder import Recorder
from ascend_adapt.alignment.selection import Selection
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.parallel.tensor_parallel import RowParallelLinear

STEPS = 2


def bias_on_every_rank(self, x, *, add_bias=True):
    """A row-parallel layer that adds its bias before the sum over ranks."""
    return self.tp.leave(functional.linear(x, self.weight, self.bias if add_bias and self.tp.size > 1 else None))


def record(folder: Path, ranks: int, model: str) -> None:
    case = Case(model, model, {"tensor": ranks}, steps=STEPS)
    with Recorder(folder, Selection()):
        train(case, meshes.build(case.settings.parallel, torch.device("cpu")))


def on_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for model in ("gpt2", "gated"):
        record(folder / model, 2, model)
    RowParallelLinear.forward = bias_on_every_rank
    record(folder / "faulty", 2, "gpt2")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder of the recordings of two ranks."""
    folder = tmp_path_factory.mktemp("two")
    multiprocessing.start_processes(on_rank, (folder,), nprocs=2, start_method="fork")
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The folder of the recordings of one rank."""
    folder = tmp_path_factory.mktemp("one")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for model in ("gpt2", "gated"):
        record(folder / model, 1, model)
    dist.destroy_process_group()
    return folder


@pytest.mark.parametrize("model", ["gpt2", "gated"])
def test_one_rank_agrees_with_two(model, two, one, compared):
    for pair in ((one / model, two / model), (two / model, one / model)):
        report = compared(*pair)
        assert report.first is None, report.first
        assert report.steps == [1, 2]
        assert not report.notes


def test_a_bias_that_is_added_on_every_rank_is_found(two, one, compared):
    """In step 2: the biases of step 1 are 0."""
    found = compared(one / "gpt2", two / "faulty").first
    assert (found.step, found.phase, found.module) == (2, "forward", "layers.0.attention.dense")
