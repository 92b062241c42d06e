from __future__ import annotations

import pytest
from native.configurations import config

from ascend_adapt.config.batches import (
    batch_at,
    check_rampup,
    iterations_for,
    resolve_batch,
    samples_from,
    samples_wanted,
)
from ascend_adapt.config.train_config import Batch
from ascend_adapt.errors import ConfigError


def test_batch_1():
    assert resolve_batch(4, 16, 2, None) == Batch(2, 2, 16)
    with pytest.raises(ConfigError, match="16, expected a multiple of micro batch 3 x data-parallel size 4 = 12"):
        resolve_batch(4, 16, 3, None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, 4, 32), (4, 32, 384)),
        ((96, None, 4), (8, 4, 96)),
        ((96, None, None), (32, 1, 96)),
        ((None, 4, None), (4, 1, 12)),
        ((96, 4, 8), (4, 8, 96)),
    ],
)
def test_two_numbers_of_three_are_enough_and_one_is(given, expected):
    assert resolve_batch(3, *given) == Batch(*expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, None, 4), "no size is given"),
        ((100, 4, 8), "train batch: 100, expected micro batch 4 x accumulation 8 x data-parallel size 3 = 96"),
        ((100, None, 8), "a multiple of data-parallel size 3 x accumulation 8 = 24"),
        ((0, 4, 8), "train batch: 0, expected at least 1"),
        ((None, -4, 8), "micro batch: -4, expected at least 1"),
    ],
)
def test_numbers_that_do_not_divide(given, message):
    with pytest.raises(ConfigError, match=message):
        resolve_batch(3, *given)


def test_a_batch_grows_as_megatrons_does():
    """By hand: from 4 by 4 to 16 over 90 samples is three increments of 30 samples."""
    batch = Batch(2, 4, 16, (4, 4, 90))
    sizes = [batch_at(batch, 2, consumed) for consumed in (0, 29, 30, 60, 89, 90, 91, 500)]
    assert sizes == [(4, 1), (4, 1), (8, 2), (12, 3), (12, 3), (16, 4), (16, 4), (16, 4)]
    # 4 x 8 = 32 samples in 8 steps, then 8 x 4 = 32, then 12 x 3 = 36, then whole ones.
    assert iterations_for(batch, 2, 100 + 16 * 3) == 8 + 4 + 3 + 3


@pytest.mark.parametrize(
    ("rampup", "message"),
    [
        ((4, 5, 90), "from 4 by 5 to 16"),
        ((6, 5, 90), "first size 6, expected a multiple of micro batch 2 x data-parallel size 2 = 4"),
    ],
)
def test_a_batch_that_cannot_grow_so(rampup, message):
    with pytest.raises(ConfigError, match=message):
        check_rampup(Batch(2, 4, 16, rampup), 2)


def test_samples_asked_for():
    whole = config(iterations=100, eval_interval=30, eval_iterations=5)
    assert samples_wanted(whole) == (200, 4 * 5 * 2, 5 * 2)
    assert samples_wanted(config(iterations=100, eval_interval=0)) == (200, 0, 0)
    assert samples_wanted(config(train_samples=333, eval_interval=0))[0] == 333


@pytest.mark.parametrize("consumed", [0, 2, 12, 24, 28])
@pytest.mark.parametrize("steps", [0, 1, 3, 7, 20])
def test_samples_of_steps_to_come(consumed, steps):
    batch, reached = Batch(1, 8, 8, rampup=(2, 2, 24)), consumed
    for _ in range(steps):
        reached += batch_at(batch, 1, reached)[0]
    assert samples_from(batch, 1, consumed, steps) == reached - consumed
    assert samples_from(Batch(1, 8, 8), 1, consumed, steps) == 8 * steps
