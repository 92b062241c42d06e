"""The softmax extensions: their signatures, and the results of each fork."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels.megatron_extensions import FILLS, MODULES, fill_module, get_batch_per_block

FINITE = ("gpt-neox", "megatron-lm-2")
ZEROED = ("megatron-lm", "megatron-deepspeed")


def extension(name, fork="gpt-neox", **more):
    module = ModuleType(name)
    fill_module(module, fork, **more)
    return module


def in_torch(x, mask, scale, fill):
    return (x.float() * scale).masked_fill(mask, fill).softmax(-1)


@pytest.mark.parametrize("fork", FILLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masked_softmax_and_its_gradient(fork, dtype):
    torch.manual_seed(0)
    module = extension("scaled_masked_softmax_cuda", fork)
    x, grad = (torch.randn(2, 4, 16, 32).to(dtype) for _ in range(2))
    mask = torch.rand(2, 1, 16, 32) < 0.4
    scale = torch.tensor([0.5])[0]
    found = module.forward(x, mask, scale)
    exact = x.float().requires_grad_()
    right = in_torch(exact, mask, 0.5, -10000.0)
    right.backward(grad.float())
    assert found.dtype == dtype
    assert not found.requires_grad
    torch.testing.assert_close(found.float(), right.detach(), atol=4e-3, rtol=0)
    before = grad.clone()
    torch.testing.assert_close(module.backward(grad, found, scale).float(), exact.grad, atol=2e-2, rtol=0)
    assert torch.equal(grad, before)


@pytest.mark.parametrize("fork", FILLS)
def test_a_fully_masked_row_is_that_of_the_fork(fork):
    module, mask = extension("scaled_masked_softmax_cuda", fork), torch.ones(1, 1, 2, 4, dtype=torch.bool)
    found = module.forward(torch.randn(1, 1, 2, 4).half(), mask, 1.0)
    assert found.unique().tolist() == ([0.25] if fork in FINITE else [0.0])


@pytest.mark.parametrize("fork", FILLS)
def test_scores_below_the_fill_are_those_of_the_fork(fork):
    module, mask = extension("scaled_masked_softmax_cuda", fork), torch.tensor([False, False, True]).view(1, 1, 1, 3)
    found = module.forward(torch.full((1, 1, 1, 3), -20000.0).half(), mask, 1.0).flatten().tolist()
    assert found == {FINITE: [0.0, 0.0, 1.0], ZEROED: [0.0] * 3}.get(
        next((forks for forks in (FINITE, ZEROED) if fork in forks), ()), [0.5, 0.5, 0.0]
    )


@pytest.mark.parametrize("given", [{"numerics": "exact"}, {}])
def test_exact_numerics_are_exact_in_every_fork(given, monkeypatch):
    if not given:
        monkeypatch.setenv("ASCEND_ADAPT_NUMERICS", "exact")
    mask = torch.tensor([[False, False, True], [True, True, True]]).view(1, 1, 2, 3)
    for fork in FILLS:
        module = extension("scaled_masked_softmax_cuda", fork, **given)
        found = module.forward(torch.full((1, 1, 2, 3), -20000.0).half(), mask, 1.0)
        assert found.flatten().tolist() == [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]


def test_a_uint8_mask_masks_where_it_is_1():
    module = extension("scaled_masked_softmax_cuda")
    mask = torch.tensor([0, 1, 2, 0], dtype=torch.uint8).view(1, 1, 1, 4)
    assert module.forward(torch.zeros(1, 1, 1, 4), mask, 1.0).flatten().tolist() == pytest.approx(
        [1 / 3, 0, 1 / 3, 1 / 3]
    )


def test_the_scale_is_rounded_as_the_extension_rounds_it():
    x, third = torch.randn(1, 1, 4, 64).bfloat16(), 1 / 3
    module = extension("scaled_softmax_cuda")
    rounded = float(torch.tensor(third).bfloat16())
    torch.testing.assert_close(module.forward(x, third), (x.float() * rounded).softmax(-1).bfloat16(), atol=0, rtol=0)
    exact = extension("scaled_softmax_cuda", numerics="exact")
    torch.testing.assert_close(exact.forward(x, third), (x.float() * third).softmax(-1).bfloat16(), atol=0, rtol=0)


def test_upper_triangular_softmax():
    module = extension("scaled_upper_triang_masked_softmax_cuda")
    x = torch.randn(6, 16, 16).half()
    late = torch.ones(16, 16, dtype=torch.bool).triu(1)
    found = module.forward(x, torch.tensor(2.0))
    torch.testing.assert_close(found.float(), in_torch(x, late, 2.0, float("-inf")), atol=1e-3, rtol=0)
    assert found[:, late].eq(0).all()
    assert module.backward(torch.randn_like(found), found, torch.tensor(2.0))[:, late].eq(0).all()
    assert not hasattr(module, "get_batch_per_block")


@pytest.mark.parametrize(
    ("keys", "rows"), [(1, 256), (16, 16), (17, 8), (32, 8), (128, 8), (129, 4), (1024, 4), (2048, 4)]
)
def test_rows_of_a_block_are_those_of_the_cuda_kernel(keys, rows):
    # 128 threads: warps of min(32, next power of two), and two rows a warp up to 128 keys.
    assert get_batch_per_block(keys, keys, 4, 16) == rows


def test_wrong_arguments_are_refused():
    with pytest.raises(KernelArgumentError, match="fork 'megatron': expected one of gpt-neox"):
        extension("scaled_softmax_cuda", "megatron")
    with pytest.raises(KernelArgumentError, match="numerics 'finite': expected upstream or exact"):
        extension("scaled_softmax_cuda", numerics="finite")
    with pytest.raises(KernelArgumentError, match="module 'fused_kernels': expected one of scaled_masked"):
        extension("fused_kernels")
    with pytest.raises(KernelArgumentError, match=r"x has shape \[4, 4\], expected 4 axes"):
        extension("scaled_masked_softmax_cuda").forward(torch.randn(4, 4), torch.zeros(1, 1, 4, 4), 1.0)
    with pytest.raises(KernelArgumentError, match=r"x has shape \[2, 4, 5\], expected \[B \* N, S, S\]"):
        extension("scaled_upper_triang_masked_softmax_cuda").forward(torch.randn(2, 4, 5), 1.0)
    with pytest.raises(KernelArgumentError, match="expected one shape"):
        extension("scaled_softmax_cuda").backward(torch.randn(2, 3), torch.randn(2, 4), 1.0)


def test_every_module_has_both_directions():
    for name in MODULES:
        assert {"forward", "backward"} <= set(vars(extension(name)))
