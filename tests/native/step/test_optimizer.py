"""The optimizers compared with those of torch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from ascend_adapt.config.train_config import OptimizerConfig as Settings
from ascend_adapt.native.parallel.parameters import ParameterLayout, Placed
from ascend_adapt.native.step.optimizer import Optimizer, decays

LR, DECAY = 1e-2, 0.1


@dataclass
class Pair:
    """Parameters, and torch's with the same numbers."""

    ours: list[Placed]
    theirs: list[nn.Parameter]


@pytest.fixture
def pair():
    torch.manual_seed(0)
    shapes = {"layer.weight": (5, 3), "layer.bias": (5,), "norm.weight": (4,)}
    ours = [
        Placed(name, nn.Parameter(torch.randn(shape)), ParameterLayout(0.0), shape) for name, shape in shapes.items()
    ]
    return Pair(ours, [nn.Parameter(one.parameter.detach().clone()) for one in ours])


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        (Settings(kind="adamw"), lambda groups: torch.optim.AdamW(groups, lr=LR)),
        (Settings(kind="adam", decoupled=False), lambda groups: torch.optim.Adam(groups, lr=LR)),
        (Settings(kind="sgd", momentum=0.9), lambda groups: torch.optim.SGD(groups, lr=LR, momentum=0.9)),
    ],
    ids=["adamw", "adam with L2", "sgd"],
)
def test_beside_torch(pair, settings, theirs):
    ours = Optimizer(pair.ours, settings)
    groups = [
        {"params": [one for one in pair.theirs if one.dim() > 1], "weight_decay": DECAY},
        {"params": [one for one in pair.theirs if one.dim() < 2], "weight_decay": 0.0},
    ]
    upstream = theirs(groups)
    for step in range(4):
        for number, (one, other) in enumerate(zip(pair.ours, pair.theirs, strict=True)):
            # A parameter whose first gradient comes late: each counts its own steps.
            late = number == 1 and step < 2
            one.parameter.grad = None if late else torch.randn(one.parameter.shape)
            other.grad = None if late else one.parameter.grad.clone()
        ours.step(LR, DECAY)
        upstream.step()
        ours.clear_gradients()
        assert all(one.parameter.grad is None for one in pair.ours)
    for one, other in zip(pair.ours, pair.theirs, strict=True):
        torch.testing.assert_close(one.parameter, other, rtol=1e-6, atol=1e-7, msg=one.name)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.0])
@pytest.mark.parametrize(
    "settings",
    [Settings(kind="adamw"), Settings(kind="adam", decoupled=False), Settings(kind="sgd")],
    ids=["adamw", "adam with L2", "sgd"],
)
def test_a_step_that_found_inf_changes_nothing(pair, settings, value):
    optimizer = Optimizer(pair.ours, settings)

    def step(value, found_inf):
        for one in pair.ours:
            one.parameter.grad = torch.full_like(one.parameter, value)
        optimizer.step(LR, DECAY, torch.tensor(value), torch.tensor(found_inf))
        optimizer.clear_gradients()

    def kept():
        moments = [each.clone() for state in optimizer.states for each in state.values()]
        return [*(one.local.clone() for one in pair.ours), *moments, *(each.clone() for each in optimizer.steps)]

    step(0.5, 0.0)
    before = kept()
    step(value, 1.0)
    assert all(torch.equal(mine, right) for mine, right in zip(kept(), before, strict=True))
    step(0.5, 0.0)
    assert not any(torch.equal(one.local, right) for one, right in zip(pair.ours, before, strict=False))


def test_what_decays(pair):
    assert [decays(one) for one in pair.ours] == [True, False, False]


def test_gradients_without_a_row_are_dropped_too():
    whole = torch.ones(8)
    ours = [
        Placed(name, nn.Parameter(torch.zeros(n)), ParameterLayout(0.0), (8,)) for name, n in (("some", 8), ("none", 0))
    ]
    optimizer = Optimizer(ours, Settings())
    for one in ours:
        one.parameter.grad = whole[: len(one.local)]
    optimizer.clear_gradients()
    assert [one.parameter.grad for one in ours] == [None, None]
