"""aligned_linear equals torch's linear layer, with aligned rows."""

from __future__ import annotations

import pytest
import torch

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels.operators.aligned_linear import aligned_linear, is_aligned


@pytest.mark.parametrize("columns", [3, 8, 9, 50257 % 100])
@pytest.mark.parametrize("shape", [(16,), (5, 16), (2, 3, 16)])
def test_it_equals_torchs(columns, shape):
    torch.manual_seed(0)
    sides = []
    x, weight = torch.randn(shape, dtype=torch.float64), torch.randn(columns, 16, dtype=torch.float64)
    grad = torch.randn(*shape[:-1], columns, dtype=torch.float64)
    for function in (aligned_linear, torch.nn.functional.linear):
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        result = function(*leaves)
        result.backward(grad)
        sides.append([result.detach(), *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*sides, strict=True):
        torch.testing.assert_close(ours, theirs, check_stride=False)


def test_rows_start_at_multiples_of_16_bytes():
    result = aligned_linear(torch.ones(4, 8, dtype=torch.bfloat16), torch.ones(50257, 8, dtype=torch.bfloat16))
    assert result.shape == (4, 50257)
    assert result.stride() == (50264, 1)
    assert not is_aligned(50257, torch.bfloat16)
    assert is_aligned(50264, torch.bfloat16)


def test_wrong_arguments_are_refused_with_both_shapes():
    with pytest.raises(KernelArgumentError, match=r"\[2, 8\].*\[3, 9\]"):
        aligned_linear(torch.ones(2, 8), torch.ones(3, 9))
