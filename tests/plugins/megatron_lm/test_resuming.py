"""What a distributed optimizer on torch's Adam saves and loads: Megatron's own methods are stood in for."""

from __future__ import annotations

import dataclasses
import pickle
from types import SimpleNamespace

import pytest
import torch

from ascend_adapt_plugins.megatron_lm import resuming


@pytest.fixture
def instance():
    """Stands for Megatron's DistributedOptimizer: the attributes that the patches read."""
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    inner = torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.0)
    places = {f"parameter {order}": (0, order) for order in range(3)}
    return SimpleNamespace(optimizer=inner, model_param_group_index_map=places)


def step(instance):
    for parameter in instance.optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones(2)
    instance.optimizer.step()


def test_an_optimizer_that_has_not_stepped_is_at_step_0(instance):
    def steps():
        return [one["step"].item() for one in instance.optimizer.state_dict()["state"].values()]

    assert resuming.optimizer_step_without_state.function(steps, instance, (), {}) == [0.0]
    assert not instance.optimizer.state
    step(instance)
    assert resuming.optimizer_step_without_state.function(steps, instance, (), {}) == [1.0] * 3


def test_the_loaded_step_is_kept(instance):
    def upstream(parameter, tensors):
        group, order = instance.model_param_group_index_map[parameter]
        state = instance.optimizer.state[instance.optimizer.param_groups[group]["params"][order]]
        for key, value in state.items():
            value.copy_(tensors[key])

    step(instance)
    saved = {"param": torch.zeros(2), "exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)}
    with pytest.raises(KeyError, match="step"):
        upstream("parameter 1", saved)
    resuming.resume_optimizer_step.function(upstream, instance, ("parameter 1", saved), {})
    state = instance.optimizer.state[instance.optimizer.param_groups[0]["params"][1]]
    assert state["step"] == 1
    assert torch.equal(state["exp_avg"], torch.ones(2))


def test_the_step_of_values_to_be_overwritten_is_not_taken(instance):
    def upstream(parameter, tensors):
        group, order = instance.model_param_group_index_map[parameter]
        state = instance.optimizer.state[instance.optimizer.param_groups[group]["params"][order]]
        for key in state:
            state[key].copy_(tensors[key])

    step(instance)
    for state in instance.optimizer.state.values():
        state["step"].fill_(3.0)  # as load_state_dict left it
    # 0.19 makes the values by a step on gradients of 0, and saves and loads no step.
    template = {"param": torch.zeros(2), "exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2), "step": torch.ones(())}
    resuming.resume_optimizer_step.function(upstream, instance, ("parameter 1", template), {})
    state = instance.optimizer.state[instance.optimizer.param_groups[0]["params"][1]]
    assert state["step"] == 3
    assert torch.equal(state["exp_avg"], torch.ones(2))
    assert template["step"] == 1


@pytest.mark.parametrize(("patched", "counted"), [(False, 5 + 3), (True, 5 + 1)])
def test_each_parameter_counts_its_own_steps(instance, patched, counted):
    def upstream():
        shared = torch.tensor(5.0)
        for state in instance.optimizer.state.values():
            state["step"] = shared

    step(instance)
    if patched:
        resuming.step_per_parameter.function(upstream, instance, (), {})
    else:
        upstream()
    step(instance)
    assert {state["step"].item() for state in instance.optimizer.state.values()} == {counted}


def test_no_transformer_engine_is_of_version_0():
    def upstream():
        raise ModuleNotFoundError("transformer_engine")

    assert str(resuming.te_version_or_0.function(upstream, None, (), {})) == "0.0.0"


def test_an_item_is_written_in_the_format_of_torch_save():
    def upstream(*args, serialization_format):
        return len(args), serialization_format.value

    write = resuming.write_item_format.function
    assert write(upstream, None, (1, 2, 3, 4, 5), {}) == (5, "torch_save")
    assert write(lambda *args: args, None, (1, 2, 3, 4, 5, 6), {}) == (1, 2, 3, 4, 5, 6)


def test_attributes_of_the_metadata_are_written(tmp_path):
    """As torch 2.9 to 2.12 finish a checkpoint: they write a copy by dataclasses.replace."""
    from torch.distributed.checkpoint.metadata import Metadata

    def upstream(metadata, results):
        metadata = dataclasses.replace(metadata, version="1.0.0")
        metadata.storage_data = results
        (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))

    def written(finish):
        metadata = Metadata(state_dict_metadata={"weight": None}, planner_data={"a": 1})
        metadata.mcore_data = {"weight": {"nd_reformulated_orig_global_shape": (2, 3)}}
        finish(metadata, [7])
        assert not hasattr(metadata, "storage_meta") or metadata.storage_meta is None
        return pickle.loads((tmp_path / ".metadata").read_bytes())

    assert not hasattr(written(upstream), "mcore_data")
    patched = resuming.keep_megatron_metadata.function
    read = written(lambda *args: patched(upstream, None, args, {}))
    assert type(read) is Metadata
    assert read.mcore_data == {"weight": {"nd_reformulated_orig_global_shape": (2, 3)}}
    assert (read.version, read.storage_data, read.planner_data) == ("1.0.0", [7], {"a": 1})
    assert b"ascend" not in (tmp_path / ".metadata").read_bytes()
