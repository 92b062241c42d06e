"""Collectives that NCCL computes and gloo does not: averages, scaled sums, tensors with gradients."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import ascend_adapt

pytestmark = pytest.mark.skipif(
    not hasattr(dist, "reduce_scatter_single"), reason="before 2.13, torch creates PREMUL_SUM only with NCCL"
)


@pytest.fixture(autouse=True)
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def reduced(name, op, **options):
    """Return the result for [1, 2] in one rank."""
    tensor, output = torch.tensor([1.0, 2.0]), torch.zeros(2)
    if name == "reduce_scatter":
        work = dist.reduce_scatter(output, [tensor], op=op, **options)
    elif "scatter" in name:
        work = getattr(dist, name)(output, tensor, op=op, **options)
    else:
        work, output = getattr(dist, name)(tensor, **({"dst": 0} if name == "reduce" else {}), op=op, **options), tensor
    if options:
        work.wait()
    return output.tolist()


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("options", [{}, {"async_op": True}], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize(
    "name", ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"]
)
def test_a_sum_has_its_factor(name, options):
    op = dist.ReduceOp.PREMUL_SUM(0.25)
    with pytest.raises(RuntimeError, match="PREMUL_SUM"):
        reduced(name, op)
    with ascend_adapt.enabled(device="cpu"):
        assert reduced(name, op, **options) == [0.25, 0.5]
        assert reduced(name, dist.ReduceOp.AVG, **options) == [1, 2]
        assert reduced(name, dist.ReduceOp.SUM, **options) == [1, 2]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "name", ["all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single"]
)
@pytest.mark.parametrize("which", ["input", "output"])
def test_tensors_with_gradients_are_gathered_and_scattered(name, which):
    given = torch.tensor([1.0, 2.0], requires_grad=which == "input") * 2
    output = torch.zeros(2, requires_grad=which == "output")
    with ascend_adapt.enabled(device="cpu"):
        getattr(dist, name)(output, given)
    assert output.tolist() == [2, 4]
    assert output.requires_grad == (which == "output")  # without the patch, an error or a recorded copy
    assert given.requires_grad == (which == "input")


def test_tensors_with_gradients_are_averaged():
    leaf = torch.tensor([1.0, 2.0], requires_grad=True)
    with ascend_adapt.enabled(device="cpu"):
        dist.all_reduce(leaf, op=dist.ReduceOp.AVG)
    assert leaf.tolist() == [1, 2]
    assert leaf.is_leaf


def test_hooks_that_compress_gradients_keep_their_checks():
    def bf16_compress_hook(state, bucket: int):
        raise AssertionError("not registered")

    with ascend_adapt.enabled(device="cpu"):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        with pytest.raises(ValueError, match="bucket annotation should be"):
            model.register_comm_hook(None, bf16_compress_hook)
