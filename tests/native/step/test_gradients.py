"""The global gradient norm."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.parallel.parameters import ParameterLayout, Placed
from ascend_adapt.native.step import gradients

ALONE = meshes.single(torch.device("cpu"))


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_gradient_that_overflows_where_another_rank_counts_it_is_seen(value):
    counted = Placed("embedding.weight", nn.Parameter(torch.ones(4)), ParameterLayout(0.0), (4,))
    copy = Placed("head.weight", nn.Parameter(torch.ones(4)), ParameterLayout(0.0, copy_of="embedding.weight"), (4,))

    def norm(*numbers):
        each = gradients.Norms([counted, copy], torch.tensor(numbers))
        return float(gradients.reduced(each, torch.ones(2), torch.zeros(0), ALONE)[0])

    assert norm(2.0, 3.0) == 2.0
    assert not math.isfinite(norm(2.0, value))
    assert not math.isfinite(norm(value, 3.0))


@pytest.mark.parametrize(
    ("norm", "expected"), [(0.0, 0.0), (3.0, 0.0), (3e38, 0.0), (math.inf, 1.0), (-math.inf, 1.0), (math.nan, 1.0)]
)
def test_a_norm_that_is_not_finite_is_marked(norm, expected):
    assert float(gradients.found_inf(torch.tensor(norm))) == expected
