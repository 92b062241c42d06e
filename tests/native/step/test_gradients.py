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


def test_weights_are_checked_as_the_passes_used_them():
    """Half the memory traffic of the master weights."""
    master, used = nn.Parameter(torch.tensor([3.0, 4.0])), nn.Parameter(torch.tensor([6.0, 8.0]).bfloat16())
    copied = Placed("copied", master, ParameterLayout(0.0), (2,), used)
    alone = Placed("alone", nn.Parameter(torch.tensor([math.nan])), ParameterLayout(0.0), (1,))
    norms = gradients.weight_norms([copied, alone], as_computed=True)
    assert {one.name: float(number) for one, number in zip(norms.parameters, norms.numbers, strict=True)}[
        "copied"
    ] == 10
    assert norms.not_finite() == ("alone",)
    assert gradients.weight_norms([copied]).numbers.tolist() == [5.0]
