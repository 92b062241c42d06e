"""Profiled steps, their traces, and profilers that fail."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from native.test_loop import RecordingLog

from ascend_adapt.config.profile_config import Profile, read_profile
from ascend_adapt.errors import ConfigError
from ascend_adapt.native import device as devices
from ascend_adapt.native import loop


def run(settings, folder, profile):
    log = RecordingLog()
    loop.train(replace(settings, eval_interval=0, iterations=5, profile=profile), folder, log)
    return log


def test_only_the_chosen_steps_are_traced(settings, tmp_path):
    plain = run(settings, tmp_path, Profile())
    assert not (tmp_path / "profile").exists()
    log = run(settings, tmp_path, Profile(2, 3))
    assert log.losses == plain.losses
    path = tmp_path / "profile" / "rank00000-iterations-2-3.json"
    assert log.said[-1].startswith(f"profile of iterations 2 to 3, rank 0: {path}, ")
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    events = json.loads(path.read_text())["traceEvents"]
    # 8 micro batches a step, each with a loss of its own.
    assert sum(one.get("name") == "aten::embedding" for one in events) == 2 * 8 * 2
    assert any("Backward" in one.get("name", "") for one in events)


def test_run_that_ends_early_keeps_the_profiled_steps(settings, tmp_path):
    log = run(replace(settings, exit_interval=3), tmp_path, Profile(2, 9))
    assert log.said[-1].startswith("profile of iterations 2 to 3, rank 0: ")
    assert (tmp_path / "profile" / "rank00000-iterations-2-3.json").exists()


def test_run_that_ends_before_the_chosen_steps_has_no_trace(settings, tmp_path):
    log = run(replace(settings, exit_interval=3), tmp_path, Profile(4, 9))
    assert log.said[-1] == "profile: no iteration from 4 to 9 was run"
    assert not (tmp_path / "profile").exists()
    with pytest.raises(
        ConfigError, match="profile: iteration 6, expected at most 5, the run's last iteration — choose earlier ones"
    ):
        run(settings, tmp_path, Profile(6, 9))


@pytest.mark.parametrize("when", ["start", "export_chrome_trace"])
def test_failing_profiler_is_reported_and_the_run_continues(settings, tmp_path, monkeypatch, when):
    def fails(*_):
        raise RuntimeError("no such counter\nand more")

    monkeypatch.setattr(torch.profiler.profile, when, fails)
    log = run(settings, tmp_path, Profile(2, 2))
    assert log.said[-1].startswith("profile of iterations 2, rank 0: no trace, RuntimeError: no such counter")
    assert len(log.losses) == 5
    assert not list((tmp_path / "profile").glob("*"))


def test_profiler_that_silently_writes_no_trace_is_reported(settings, tmp_path, monkeypatch):
    """As torch_npu's does, whose errors go to its own log."""
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", lambda *_: None)
    log = run(settings, tmp_path, Profile(2, 2))
    assert "rank 0: no trace was written" in log.said[-1]


def test_an_emulated_npu_has_no_profiler(monkeypatch):
    monkeypatch.setenv("ASCEND_ADAPT_EMULATED", "1")
    with pytest.raises(RuntimeError, match="an emulated NPU has no profiler"):
        devices.profiler(SimpleNamespace(type="npu"))


@pytest.mark.parametrize(
    ("steps", "ranks", "expected"),
    [
        ("7", "0", Profile(7, 7, (0,))),
        ("20-22", "0,4-6, 4", Profile(20, 22, (0, 4, 5, 6))),
        ("1-20", "3", Profile(1, 20, (3,))),
    ],
)
def test_what_is_asked_for(steps, ranks, expected):
    assert read_profile(steps, ranks) == expected


@pytest.mark.parametrize(
    ("steps", "ranks", "text"),
    [
        ("0", "0", "--profile: '0', expected a step or first-last, counted from 1"),
        ("3-", "0", "--profile: '3-', expected"),
        ("5-4", "0", "last step: 4, expected at least 5"),
        ("1-21", "0", "profile: 21 steps, expected at most 20 — each step adds"),
        ("1", "a", "--profile-ranks: 'a', expected ranks"),
        ("1", "5-4", "profile: no ranks, expected at least one"),
    ],
)
def test_what_cannot_be_meant(steps, ranks, text):
    with pytest.raises(ConfigError) as error:
        read_profile(steps, ranks)
    assert text in str(error.value)


def test_a_rank_that_there_is_not(settings):
    with pytest.raises(ConfigError, match="profile: rank 1, expected below 1, the number of ranks"):
        replace(settings, profile=Profile(1, 1, (1,)))
