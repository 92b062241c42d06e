from __future__ import annotations

import dataclasses

import pytest
import torch
from native.configurations import config
from native.small_models import MODELS

from ascend_adapt.config.memory_estimate import memory_bytes, rank_parameters, total_parameters
from ascend_adapt.config.train_config import Batch, Parallel, Precision
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.step.trainer import build


def parameters_of(run, rank):
    """Parameters of the modules that a rank builds, on a mesh without process groups."""
    mesh = Mesh(run.parallel, rank, torch.device("meta"))
    return sum(parameter.numel() for decoder in build(run, mesh) for parameter in decoder.parameters())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("tensor", "pipeline", "virtual"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 2), (4, 4, 1)])
def test_parameters_are_those_of_the_modules(name, tensor, pipeline, virtual):
    stages = (4 // pipeline // virtual,) * (pipeline * virtual)
    parallel = Parallel(tensor=tensor, pipeline=pipeline, virtual_stages=virtual, stages=stages)
    model = MODELS[name]
    if model.num_query_groups % tensor:
        model = dataclasses.replace(model, num_query_groups=tensor)
    run = config(model=model, parallel=parallel, batch=Batch(1, 4, 4), data={"seq_length": 16})
    for stage in range(pipeline):
        assert rank_parameters(model, parallel, stage) == parameters_of(run, stage * tensor)


@pytest.mark.parametrize("name", MODELS)
def test_the_whole_counts_a_tied_table_once(name):
    model = MODELS[name]
    whole = Parallel(stages=(4,))
    assert total_parameters(model) == rank_parameters(model, whole, 0)


def held(zero=0, dtype="fp32", data=4, reduce="fp32", **parallel):
    run = config(
        parallel=Parallel(data=data, stages=(2,), zero_stage=zero, **parallel),
        batch={"total": 2 * data},
        precision=Precision(dtype=dtype, reduce=reduce),
    )
    return memory_bytes(run, 0), rank_parameters(run.model, run.parallel, 0)


def test_memory_by_zero_stage():
    """By hand: masters, gradients and two moments in fp32; from stage 1 on a quarter of masters and moments."""
    plain, own = held()
    assert (plain["parameters"], plain["gradients"], plain["optimizer"]) == (4 * own, 4 * own, 8 * own)
    one, two, three = (held(stage)[0] for stage in (1, 2, 3))
    assert one["optimizer"] == two["optimizer"] == three["optimizer"] == 2 * own
    assert (one["gradients"], two["gradients"]) == (4 * own, own)
    assert one["parameters"] == own + 4 * own
    assert held(0, "bf16")[0]["parameters"] == 4 * own + 2 * own
    assert held(0, "bf16")[0]["gradients"] == 4 * own
    for data in (1, 4):  # 16-bit sums become the masters' gradients
        assert held(0, "bf16", data=data, reduce="bf16")[0]["gradients"] == 4 * own
    assert held(1, "bf16", reduce="bf16")[0]["gradients"] == 2 * own
    alone = held(3, "bf16", data=1)[0]
    assert alone["gradients"] == 4 * own
    assert alone["parameters"] <= held(0, "bf16", data=1)[0]["parameters"]
    for parts in (plain, one, two, three):
        assert parts["total"] == sum(value for name, value in parts.items() if name != "total")


def test_offloading_leaves_no_optimizer_on_the_device():
    parts, own = held(3, offload_optimizer=True)
    assert parts["optimizer"] == 0
    assert parts["parameters"] <= 4 * own


def test_recomputation_keeps_less():
    assert held(recompute="full")[0]["activations"] < held()[0]["activations"]
