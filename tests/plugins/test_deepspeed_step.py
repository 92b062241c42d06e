"""Patches that save operations after the backward pass of ZeRO-1 and ZeRO-2, compared with DeepSpeed's methods."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_adapt_plugins.deepspeed_runtime import (
    flat_gradients,
    flat_weights,
    gradient_average,
    gradient_checks,
    gradient_norm,
)

pytest.importorskip("deepspeed")


@pytest.fixture
def optimizer_class():
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    return DeepSpeedZeroOptimizer


@pytest.fixture(autouse=True)
def one_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    import deepspeed

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    deepspeed.comm.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    yield
    torch.distributed.destroy_process_group()
    deepspeed.comm.comm.cdb = None


def optimizer_with(optimizer_class, **attributes):
    """Return an uninitialized optimizer with these attributes."""
    optimizer = object.__new__(optimizer_class)
    vars(optimizer).update(attributes)
    return optimizer


class Operations(TorchDispatchMode):
    """Counts operations."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += 1
        return operation(*args, **(kwargs or {}))


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("bad", [None, float("inf"), float("nan")])
@pytest.mark.parametrize("norm_type", [2, float("inf")])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_norm_is_over_the_parameters_that_deepspeed_counts(optimizer_class, rank, norm_type, bad):
    optimizer = optimizer_with(
        optimizer_class,
        model_parallel_rank=rank,
        dp_process_group=None,
        model_parallel_group=None,
        device="cpu",
    )
    params = [torch.nn.Parameter(torch.zeros(1)) for _ in range(5)]
    params[1].ds_pipe_replicated = True
    params[2].tensor_model_parallel = params[3].model_parallel = True
    gradients = [random(7, 3, seed=at, dtype=torch.bfloat16) for at in range(5)]
    gradients.insert(2, torch.full((4,), 1e6))  # padding between two parameters
    gradients[2]._zero_padding = True
    gradients[-1] = torch.zeros(0, dtype=torch.bfloat16)
    if bad is not None:
        gradients[3][1, 1] = bad  # of a parameter that every rank counts
    if norm_type != 2:
        gradients.pop()
    expected = optimizer.get_grad_norm_direct(gradients, params, norm_type)
    passed = []

    def get_grad_norm_direct(gradients, params, norm_type=2):
        passed.extend(gradients)
        return optimizer.get_grad_norm_direct(gradients, params, norm_type)

    call = (get_grad_norm_direct, optimizer, (gradients, params, norm_type), {})
    measured = gradient_norm.batched_gradient_norm.function(*call)
    assert measured.tolist() == expected.tolist()
    assert (measured.item() == -1) == (bad is not None)
    if norm_type == 2:  # one vector for each kind of parameter
        assert [each.shape for each in passed] == [(1,), (1,), (2,)]
        assert {each.dtype for each in passed} == {torch.float64}


@pytest.mark.parametrize("check", ["norm", "overflow"])
def test_the_number_of_operations_is_that_of_one_gradient(optimizer_class, check):
    def operations(number):
        gradients = [random(3, seed=at, dtype=torch.bfloat16) for at in range(number)]
        params = [torch.nn.Parameter(torch.zeros(3)) for _ in gradients]
        settings = {"model_parallel_rank": 0, "dp_process_group": None, "model_parallel_group": None, "device": "cpu"}
        optimizer = optimizer_with(
            optimizer_class, bit16_groups=[params], averaged_gradients={0: gradients}, **settings
        )
        with Operations() as counted:
            if check == "overflow":
                gradient_checks.batched_overflow_check.function(optimizer)
            else:
                call = (optimizer.get_grad_norm_direct, optimizer, (gradients, params), {})
                gradient_norm.batched_gradient_norm.function(*call)
        return counted.count

    assert operations(20) == operations(1)


def test_weights_are_sliced_again_only_where_they_have_moved(optimizer_class):
    flat = random(10)
    params = [torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(3))]
    optimizer = optimizer_with(
        optimizer_class,
        bit16_groups=[params],
        bit16_groups_flat=[flat],
        round_robin_bit16_groups=[params],
        round_robin_bit16_indices=[[0, 1]],
        round_robin_bit16_meta=[[one.detach().to("meta") for one in params]],
        round_robin_bit16_offsets=[[0, 6]],  # with padding in between
    )
    calls = []
    original = functools.partial(optimizer_class._update_model_bit16_weights, optimizer)

    def update(group_index):
        calls.append(group_index)
        original(group_index)

    def patched_update():
        flat_weights.slice_moved_weights.function(update, optimizer, (0,), {})
        assert [one.tolist() for one in params] == [flat[:4].view(2, 2).tolist(), flat[6:9].tolist()]
        return len(calls)

    assert [patched_update(), patched_update()] == [1, 1]
    params[1].data = params[1].data.clone()
    assert [patched_update(), patched_update()] == [2, 2]
    params[0].data = params[0].data.t()  # the same address
    assert [patched_update(), patched_update()] == [3, 3]
    params[0].data = torch.empty(0)  # while it is offloaded
    assert [patched_update(), patched_update()] == [4, 4]
    optimizer.bit16_groups_flat[0] = flat = random(10, seed=1)
    assert [patched_update(), patched_update()] == [5, 5]


@pytest.mark.parametrize("change", ["none", "order", "padding", "type", "gap", "other memory"])
def test_gradients_that_fill_one_buffer_are_not_concatenated(optimizer_class, change):
    memory = random(16)
    buffer = memory[:12]
    gradients = [buffer[1:5].view(2, 2), buffer[5:8], buffer[8:11]]
    if change == "order":
        gradients.reverse()
    if change == "padding":
        gradients[2] = torch.zeros(3)
    if change == "type":
        gradients[2] = gradients[2].view(torch.int32)
    if change == "gap":
        gradients[1:] = [buffer[6:9], buffer[9:12]]
    if change == "other memory":  # adjacent, but not of one storage
        both = memory.numpy()
        gradients = [torch.from_numpy(both[1:5]).view(2, 2), *torch.from_numpy(both[5:11]).split(3)]
    optimizer = optimizer_with(optimizer_class, bit16_groups=[[]])

    def get_flat_partition(tensor_list, first_offset, partition_size):
        return gradients

    found = flat_gradients.flat_gradient_without_copy.function(get_flat_partition, optimizer, ([], 0, 10), {})
    assert [each.tolist() for each in found] == [each.tolist() for each in gradients]
    optimizer.averaged_gradients = {0: found}
    flat = optimizer._get_preflattened_grad_partition(0)
    if change != "none":
        assert flat is None
        return
    assert (flat.data_ptr(), flat.tolist()) == (buffer[1:].data_ptr(), buffer[1:11].tolist())
    assert not gradient_checks.batched_overflow_check.function(optimizer)
    buffer[10] = float("inf")
    assert gradient_checks.batched_overflow_check.function(optimizer)


def test_gradients_that_have_left_their_buffer_are_concatenated(optimizer_class):
    """This happens if offload_states() and reload_states() run between the backward pass and the step."""
    buffer = random(10)
    gradients = list(buffer.split([4, 6]))
    call = (lambda tensor_list, first_offset, partition_size: gradients, None, ([], 0, 10), {})
    optimizer = optimizer_with(
        optimizer_class, averaged_gradients={0: flat_gradients.flat_gradient_without_copy.function(*call)}
    )
    assert optimizer._get_preflattened_grad_partition(0) is not None
    for gradient in optimizer.averaged_gradients[0]:
        gradient.data = gradient.data.clone()
    assert optimizer._get_preflattened_grad_partition(0) is None


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("none", None),
        ("sequence_parallel_size", 2),
        ("reduce_scatter", False),
        ("has_moe_layers", True),
        ("overlap_comm", True),
        ("cpu_offload", True),
        ("gradient_accumulation_dtype", torch.float32),
        ("type", torch.float16),
    ],
)
def test_the_average_of_one_rank_is_skipped_unless_it_changes_something(optimizer_class, attribute, value):
    dtype = value if attribute == "type" else torch.bfloat16
    settings = {
        "dp_process_group": None,
        "sequence_parallel_size": 1,
        "reduce_scatter": True,
        "has_moe_layers": False,
        "ipg_buckets": {dtype: SimpleNamespace(has_moe_params=False)},
        "overlap_comm": False,
        "cpu_offload": False,
        "dtype": torch.bfloat16,
        "gradient_accumulation_dtype": torch.bfloat16,
        "bit16_groups": [[]],
        "params_in_partition": [[]],
    }
    optimizer, called = optimizer_with(optimizer_class, **{**settings, attribute: value}), []

    def average_tensor(tensor, communication_data_type):
        called.append(tensor)

    gradients = torch.ones(3, dtype=torch.bfloat16)
    gradient_average.skip_average_of_one_rank.function(average_tensor, optimizer, (gradients, dtype), {})
    assert bool(called) == (attribute != "none")
