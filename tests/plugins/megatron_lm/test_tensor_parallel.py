"""Tensor-parallel layers that communicate nothing have the same bits as Megatron's; others run Megatron's code."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ascend_adapt_plugins.megatron_lm import tensor_parallel

DTYPES = [torch.float32, torch.bfloat16]


class Linear(torch.autograd.Function):
    """Stands for Megatron's autograd function: the same matmuls in the same order."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        output = torch.matmul(x, weight.t())
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        of_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        return grad.matmul(weight), rows.t().matmul(x.reshape(-1, x.shape[-1])), of_bias


def upstream(*args, **kwargs):
    return "Megatron's own"


def linear(x, weight, bias=None, *more, **options):
    options = {"gradient_accumulation_fusion": False, "allreduce_dgrad": False, "sequence_parallel": False, **options}
    return tensor_parallel.plain_linear.function(upstream, None, (x, weight, *more), {"bias": bias, **options})


def drawn(shape, dtype, *, bias=False, frozen=False):
    generator = torch.Generator().manual_seed(0)
    sizes = [shape, (40, shape[-1]), *([(40,)] if bias else []), (*shape[:-1], 40)]
    *inputs, grad = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
    for each in inputs:
        each.requires_grad_()
    inputs[1].requires_grad_(not frozen)
    return inputs, grad


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(6, 24), (5, 3, 24)])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_linear_layer_has_the_bits_of_megatrons(dtype, shape, frozen):
    inputs, grad = drawn(shape, dtype, frozen=frozen)
    found, right = linear(*inputs), Linear.apply(*inputs, None)
    assert torch.equal(found, right)
    trained = [each for each in inputs if each.requires_grad]
    for mine, true in zip(
        torch.autograd.grad(found, trained, grad), torch.autograd.grad(right, trained, grad), strict=True
    ):
        assert torch.equal(mine, true)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_is_added_before_rounding(dtype):
    """Megatron rounds the product, then the sum. Here the result is the exact one, rounded once."""
    inputs, grad = drawn((5, 3, 24), dtype, bias=True)
    found, right = linear(*inputs), Linear.apply(*inputs)
    exact = Linear.apply(*(each.double() for each in inputs))
    terms = 24 * torch.finfo(torch.float32).eps
    magnitude = Linear.apply(*(each.double().abs() for each in inputs))
    assert ((found - exact).abs() <= exact.abs() * torch.finfo(dtype).eps / 2 + magnitude * terms).all()
    for mine, true in zip(
        torch.autograd.grad(found, inputs, grad), torch.autograd.grad(right, inputs, grad), strict=True
    ):
        assert torch.equal(mine, true)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_fusion": True},
        {"allreduce_dgrad": True},
        {"sequence_parallel": True},
        {"grad_output_buffer": []},
        {"gtp_remat_size": 2},
        {"async_grad_allreduce": True},
    ],
)
def test_a_layer_that_communicates_or_fuses_accumulation_is_megatrons(options):
    (x, weight), _ = drawn((6, 24), torch.float32)
    assert linear(x, weight, **options) == "Megatron's own"


def test_autocast_and_a_bias_of_another_dtype_are_megatrons():
    """There the dtype of Megatron's result is that of the bias."""
    (x, weight, bias), _ = drawn((6, 24), torch.bfloat16, bias=True)
    assert linear(x, weight, bias.float()) == "Megatron's own"
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x.float(), weight.float()) == "Megatron's own"


@pytest.mark.parametrize("patch", tensor_parallel.REGIONS, ids=lambda patch: patch.name)
def test_a_group_of_one_rank_returns_its_input(patch, monkeypatch):
    x = torch.zeros(2, requires_grad=True)
    one, two = (SimpleNamespace(size=lambda size=size: size) for size in (1, 2))
    assert patch.function(upstream, None, (x,), {"group": one}) is x
    assert patch.function(upstream, None, (x, two), {}) == "Megatron's own"
    assert patch.function(upstream, None, (x,), {"of_a_later_release": 1}) == "Megatron's own"
    for group, returned in ((one, x), (two, "Megatron's own"), (None, "Megatron's own")):
        state = SimpleNamespace(get_tensor_model_parallel_group=lambda check_initialized, group=group: group)
        monkeypatch.setattr(tensor_parallel, "_parallel_state", lambda state=state: state)
        assert patch.function(upstream, None, (x,), {}) is returned
