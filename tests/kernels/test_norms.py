"""norms: of tensors of all kinds, compared with float64."""

from __future__ import annotations

import math

import pytest
import torch

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import norms, requests
from ascend_adapt.kernels.operators.norms import NormsCall


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_they_are_those_of_float64(backend, dtype):
    requests.state({"norms": backend})
    torch.manual_seed(0)
    tensors = [torch.randn(300, 70).to(dtype), torch.randn(5).to(dtype), torch.zeros(0, dtype=dtype)]
    found = norms([*tensors, tensors[0].T])
    expected = [float(each.double().norm()) for each in [*tensors, tensors[0]]]
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_nan_and_inf_stay_with_their_tensor():
    tensors = [torch.ones(3), torch.tensor([1.0, math.nan]), torch.tensor([-math.inf])]
    one, nan, inf = norms(tensors).tolist()
    assert one == pytest.approx(3**0.5)
    assert math.isnan(nan)
    assert inf == math.inf


def test_a_gradient_that_requires_a_gradient_gets_none():
    assert not norms([torch.ones(3, requires_grad=True)]).requires_grad


def test_a_tensor_that_is_not_contiguous_is_another_kind_of_call():
    square = torch.zeros(3, 3)
    assert NormsCall((square, square.T)).signature() != NormsCall((square, square)).signature()


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([], "the list is empty"),
        ([torch.ones(2), torch.ones(2).double()], r"tensors\[1\]: is torch.float64, expected torch.float32"),
        ([torch.ones(2), 3.0], r"tensors\[1\]"),
        ([torch.ones(2, dtype=torch.int64)], r"tensors\[0\]"),
        ([3.0], r"tensors\[0\]"),
    ],
)
def test_what_they_reject(tensors, words):
    with pytest.raises(KernelArgumentError, match=words):
        norms(tensors)
