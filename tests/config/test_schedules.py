from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascend_adapt.config.schedules import learning_rate, weight_decay
from ascend_adapt.config.train_config import Schedule
from ascend_adapt.errors import ConfigError

# Computed by upstream's own code; the file that recorded them says how to do it again.
RECORDED = json.loads(Path(__file__).parents[1].joinpath("native", "upstream_schedules.json").read_text())["schedules"]


def names(row):
    schedule = row["schedule"]
    parts = (schedule["style"], schedule.get("wsd_style", ""), schedule.get("weight_decay_style", ""))
    return "-".join([row["source"], *parts, f"{schedule['warmup']}of{schedule['decay']}"])


@pytest.mark.parametrize("row", RECORDED, ids=names)
def test_rates_and_decays_are_upstreams_own(row):
    schedule = Schedule(**row["schedule"])
    assert [learning_rate(schedule, progress) for progress in row["progress"]] == pytest.approx(row["lr"], rel=1e-12)
    for progress, expected in zip(row["progress"], row.get("weight_decay", ()), strict=False):
        assert weight_decay(schedule, 0.1, progress) == pytest.approx(expected, rel=1e-12)


def test_every_source_and_style_is_recorded():
    assert {(row["source"], row["schedule"]["style"]) for row in RECORDED} >= {
        *(("gpt-neox@9610391a", style) for style in ("constant", "linear", "cosine", "exponential")),
        *(("gpt-neox@ea7aefd8", style) for style in ("constant", "linear", "cosine", "exponential")),
        *(("Megatron-DeepSpeed@8387ae17", style) for style in ("constant", "linear", "cosine")),
        *(("Megatron-LM@core_v0.9.0", style) for style in ("cosine", "inverse-square-root", "WSD")),
    }


def test_a_schedule_of_a_third_party(site):
    site.write(their_schedule="def halved(schedule, progress):\n    return schedule.lr / 2**progress\n")
    site.install("theirs", "1.0", "[ascend_adapt.schedules]\ntheirs = their_schedule:halved")
    assert learning_rate(Schedule("theirs", 1.0, decay=10), 3) == 0.125


def test_a_schedule_that_is_not_installed():
    with pytest.raises(ConfigError, match="schedule: 'theirs', expected one of glm, megatron, neox, neox-v2, oneflow"):
        Schedule("theirs", 1.0)


def test_the_two_versions_of_neox_differ():
    old, new = (Schedule(dialect, 6e-4, 6e-5, "cosine", "iterations", 100, 1000) for dialect in ("neox-v2", "neox"))
    assert (learning_rate(old, 0), learning_rate(new, 0)) == (0.0, pytest.approx(6e-6))
    assert learning_rate(old, 900) != learning_rate(new, 900)


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (0, 0.0),
        (5, 0.5e-3),
        (9, 0.9e-3),
        (10, 1e-3 * 0.5 * (1 + 0.9510565162951535)),
        (50, 0.5e-3),
        (100, 0.0),
        (200, 0.0),
    ],
)
def test_oneflows_cosine_runs_from_the_first_step_on(progress, expected):
    """By hand from the kernel's formula: the warm-up does not put the cosine off."""
    schedule = Schedule("oneflow", 1e-3, 0.0, "cosine", "iterations", 10, 100)
    assert learning_rate(schedule, progress) == pytest.approx(expected, abs=1e-18, rel=1e-12)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_lr": 2e-3}, "min_lr: 0.002, expected at most lr = 0.001"),
        ({"warmup": 100}, "warmup: 100 samples, expected below the decay length 100"),
        ({"decay": 0}, "decay length: 0 samples, expected above 0"),
        ({"style": "cosin"}, "decay style: 'cosin', expected one of"),
    ],
)
def test_a_schedule_that_cannot_be_meant(values, message):
    with pytest.raises(ConfigError, match=message):
        Schedule(**{"dialect": "megatron", "lr": 1e-3, "decay": 100, **values})
