"""Straggler detection."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from native.small_models import GPT2, config

from ascend_adapt.config.yaml_file import to_dict
from ascend_adapt.native.metrics.step_metrics import StragglerReport
from ascend_adapt.native.metrics.stragglers import StepTimes
from ascend_adapt.native.parallel import mesh as meshes
from ascend_adapt.native.step.trainer import Trainer

HERE = Path(__file__).parents[1]


def test_least_median_most_and_rank():
    assert StragglerReport.of([3.0, 1.0, 5.0, 2.0]) == StragglerReport(1.0, 2.5, 5.0, 2)


class Group:
    """Numbers of four ranks; ours are the first."""

    size = 4

    def __init__(self, others):
        self.others = others

    def numbers(self, mine):
        return [mine, *self.others]


def times(others):
    """Return the times of a rank whose samples take 1 ms and whose MLP is not timed, among others."""
    made = StepTimes(meshes.single(torch.device("cpu")), [])
    made._group = Group(others)
    return made


def test_untimed_parts_are_not_reported():
    assert list(times([(1.0, 0.0)] * 3).report()) == ["samples"]


def interval(mine, steps=8):
    """Return the warnings of a log interval; the loop asks for them after every step, mostly without a report."""
    found = []
    for _ in range(steps - 1):
        mine.step(1e-3)
        found += mine.warnings(9, {})
    mine.step(1e-3)
    return found + mine.warnings(10, mine.report())


def test_slow_rank_is_named_once_it_stays_slow():
    usual, slow = (1e-3, 0.0), (80e-3, 0.0)
    mine = times([usual, slow, usual])
    assert [interval(mine, 4) for _ in range(3)] == [[]] * 3  # too few steps
    warning = (
        "warning: iteration 10: rank 2 is slow in loading its samples: 80.00 ms, the median over ranks is 1.00 ms, "
        "the minimum 1.00 ms"
    )
    assert [interval(mine) for _ in range(8)] == [[], [], [warning], *[[]] * 5]
    mine._group.others[1] = usual
    assert interval(mine) == []
    mine._group.others[1] = slow
    assert [interval(mine) for _ in range(3)] == [[], [], [warning]]


def test_ranks_that_are_slow_in_turn_are_not_reported():
    """Other work of the host: each interval it is another rank."""
    mine, others = times([]), [(1e-3, 0.0)] * 3
    for slow in (0, 1, 2, 0, 0, 1, 2, 2):
        mine._group.others = [*others[:slow], (80e-3, 0.0), *others[slow + 1 :]]
        assert interval(mine) == []


@pytest.mark.parametrize(("seconds", "lines"), [(1.4e-3, 0), (2.9e-3, 0), (3.1e-3, 1)])
def test_small_difference_is_not_reported(seconds, lines):
    mine = times([(1e-3, 0.0), (1e-3, 0.0), (seconds, 0.0)])
    assert sum(len(interval(mine)) for _ in range(3)) == lines


@pytest.mark.parametrize(("step_s", "lines"), [(0.7, 1), (0.9, 0)])
def test_small_share_of_a_step_is_not_reported(monkeypatch, step_s, lines):
    """79 ms more than the others are 0.113 of one step and 0.088 of the other."""
    clock = itertools.count(0, step_s)
    monkeypatch.setattr("ascend_adapt.native.metrics.stragglers.time.perf_counter", lambda: next(clock))
    mine = times([(1e-3, 0.0), (80e-3, 0.0), (1e-3, 0.0)])
    assert sum(len(interval(mine)) for _ in range(3)) == lines


def test_one_rank_is_not_timed():
    trainer = Trainer(config(GPT2), meshes.single(torch.device("cpu")))
    mine = StepTimes(trainer.mesh, trainer.decoders)
    assert mine.report() == {}
    assert not any(module._forward_pre_hooks for module in trainer.decoders[0].modules())


def test_slow_rank_of_a_job_is_found(settings, tmp_path):
    """Rank 1 sleeps where it gets samples, and in its MLPs; tensor-parallel ranks wait for each other all the time."""
    made = config(GPT2, tensor=2, micro=4)
    settings = replace(settings, parallel=made.parallel, batch=made.batch, eval_interval=0)
    settings = replace(settings, logging=replace(settings.logging, interval=8))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(settings)))
    command = [sys.executable, "-m", "ascend_adapt.launch.cli", "--nproc", "2", "--device", "cpu", "--log-dir", "run"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += [str(HERE / "train_slowly.py"), "config.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for part, what in (("samples", "loading its samples"), ("mlp", "the first MLP of a step")):
        assert row["ranks"][part]["slowest"] == 1
        assert row["ranks"][part]["most"] > 0.02 > row["ranks"][part]["least"]
        assert f"warning: iteration 8: rank 1 is slow in {what}: " in done.stdout
