"""l2_norms: of tensors of every dtype, compared with float64."""

from __future__ import annotations

import math

import pytest
import torch
from error_bounds import COMPUTED_IN, ELEMENTARY, relative

from ascend_adapt.errors import KernelArgumentError
from ascend_adapt.kernels import l2_norms, requests
from ascend_adapt.kernels.operators.l2_norms import L2NormsCall


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_norms_are_those_of_float64(backend, dtype):
    requests.state({"l2_norms": backend})
    torch.manual_seed(0)
    tensors = [torch.randn(300, 70).to(dtype), torch.randn(5).to(dtype), torch.zeros(0, dtype=dtype)]
    found = l2_norms([*tensors, tensors[0].T])
    expected = [float(each.double().norm()) for each in [*tensors, tensors[0]]]
    assert found.dtype == COMPUTED_IN[dtype]
    bound = relative((tensors[0].numel() + ELEMENTARY, COMPUTED_IN[dtype]))
    assert found.tolist() == pytest.approx(expected, rel=bound)


def test_nan_and_inf_appear_only_in_the_norm_of_their_tensor():
    tensors = [torch.ones(3), torch.tensor([1.0, math.nan]), torch.tensor([-math.inf])]
    one, nan, inf = l2_norms(tensors).tolist()
    assert one == pytest.approx(3**0.5)
    assert math.isnan(nan)
    assert inf == math.inf


def test_norms_have_no_gradient():
    assert not l2_norms([torch.ones(3, requires_grad=True)]).requires_grad


def test_a_tensor_that_is_not_contiguous_is_another_kind_of_call():
    square = torch.zeros(3, 3)
    assert L2NormsCall((square, square.T)).signature() != L2NormsCall((square, square)).signature()


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
def test_arguments_that_are_rejected(tensors, words):
    with pytest.raises(KernelArgumentError, match=words):
        l2_norms(tensors)
