"""Reports of NaN, Inf and loss spikes."""

from __future__ import annotations

import math

import pytest
import torch

from ascend_adapt.native.metrics.anomalies import SEEN, AnomalyDetector
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step.trainer import Step


@pytest.fixture
def watch():
    return AnomalyDetector(meshes.single(torch.device("cpu")))


def step(loss=2.0, norm=1.0, skipped=False, spoiled=()):
    return Step(loss, norm, 1.0, skipped, spoiled=spoiled)


def test_a_spike_is_reported_and_noise_is_not(watch):
    for number in range(SEEN):
        assert watch.report(number, step(2.0 + 0.1 * math.sin(number))) == []
    assert watch.report(SEEN, step(2.15)) == []
    assert watch.report(SEEN + 1, step(2.9)) == [
        f"warning: iteration {SEEN + 1}: loss 2.9, the previous {SEEN} losses were 2.004 on average, 2.15 at most"
    ]


def test_of_steps_without_numbers_the_first_of_a_row_is_reported(watch):
    names = ("embedding.words.weight", "layers.0.dense.bias")
    bad = step(math.nan, math.nan, spoiled=names)
    assert watch.report(7, bad) == [
        "warning: iteration 7: loss nan, gradient norm nan",
        "  rank 0 (stage 0, data 0, tensor 0): gradients of 2 parameters, nearest to the loss layers.0.dense.bias",
    ]
    assert watch.report(8, bad) == []
    assert watch.report(9, step()) == []
    assert watch.report(10, bad) != []


def test_weights_with_nan_or_inf_are_reported_rather_than_what_they_spoil(watch):
    bad = Step(math.nan, math.nan, 1.0, False, spoiled=("a", "b", "c"), spoiled_weights=("b",))
    assert watch.report(7, bad)[1:] == ["  rank 0 (stage 0, data 0, tensor 0): weights of 1 parameters, the first b"]
    assert watch.is_spoiled
    watch.report(8, step())
    assert not watch.is_spoiled


def test_what_the_loss_scale_skips_is_not_reported(watch):
    assert watch.report(1, step(2.0, math.inf, skipped=True, spoiled=("a",))) == []
    assert not watch.is_spoiled


def test_a_fixed_loss_scale_cannot_answer_an_overflow():
    watch = AnomalyDetector(meshes.single(torch.device("cpu")), scale_adapts=False)
    assert watch.report(1, step(2.0, math.inf, skipped=True, spoiled=("a",))) != []
    assert watch.is_spoiled
    assert watch.cause == "rank 0 (stage 0, data 0, tensor 0): gradients of 1 parameters, nearest to the loss a"


def test_a_skipped_step_whose_loss_is_nan_is_reported(watch):
    messages = watch.report(1, step(math.nan, math.nan, skipped=True, spoiled=("a",)))
    assert messages[0] == "warning: iteration 1: loss nan, gradient norm nan"
    assert messages[1].endswith("nearest to the loss a")
    assert watch.is_spoiled
