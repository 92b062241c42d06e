"""deepspeedai's clipping off CUDA beside torch's own."""

from __future__ import annotations

import copy

import pytest

from ascend_adapt_plugins.megatron_deepspeed.gradient_clipping import clip_grad_norm_off_cuda

torch = pytest.importorskip("torch")


@pytest.fixture
def one_rank(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("norm_type", [2, 1, 3.0, float("inf")])
@pytest.mark.parametrize("limit", [0.5, 1e6])
@pytest.mark.usefixtures("one_rank")
def test_it_is_the_norm_and_the_scale_of_torch(norm_type, limit) -> None:
    layers = [torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)]
    parameters = [one for layer in layers for one in layer.parameters()]
    for at, one in enumerate(parameters[:-1]):  # the last has no gradient
        one.grad = torch.randn(one.shape, generator=torch.Generator().manual_seed(at))
    others = copy.deepcopy(parameters)
    for one, other in zip(parameters, others, strict=True):
        other.grad = None if one.grad is None else one.grad.clone()
    expected = torch.nn.utils.clip_grad_norm_(others, limit, norm_type)
    measured = [one.grad for one in parameters if one.grad is not None]
    norm = clip_grad_norm_off_cuda.function(parameters, measured, limit, norm_type)
    assert norm == pytest.approx(float(expected), rel=1e-6)
    for one, other in zip(parameters[:-1], others, strict=False):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.usefixtures("one_rank")
def test_a_rank_without_a_gradient_takes_part() -> None:
    layer = torch.nn.Linear(2, 2)
    assert clip_grad_norm_off_cuda.function(layer.parameters(), [], 1.0) == 0.0
