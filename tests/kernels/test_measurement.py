"""Ranks agree on measured choices without waiting for each other; this test needs no GPU."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ascend_adapt.errors import KernelError
from ascend_adapt.kernels import measurement, run_record
from ascend_adapt.kernels.operators.gelu import GeluCall

CALL = GeluCall(torch.zeros(3, 5))
RUNS = {"slow": lambda call: call.x, "fast": lambda call: call.x}


@pytest.fixture
def seconds(monkeypatch, tmp_path):
    """Simulated times of the backends; with a run directory and a GPU name."""
    times = {"slow": 2.0, "fast": 1.0}

    def time(call, run):
        name = next(name for name, known in RUNS.items() if known is run)
        if isinstance(times[name], Exception):
            raise times[name]
        return times[name].pop(0) if isinstance(times[name], list) else times[name]

    monkeypatch.setattr(measurement, "_time", time)
    monkeypatch.setattr(measurement, "_known", {})
    monkeypatch.setattr(run_record, "card", lambda tensor: "card of a test")
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: contextlib.nullcontext())
    monkeypatch.setenv("ASCEND_ADAPT_RUN_DIR", str(tmp_path))
    return times


def another_rank(monkeypatch):
    monkeypatch.setattr(measurement, "_known", {})


def test_the_fastest_is_chosen_and_saved(seconds, tmp_path):
    chosen = measurement.fastest("gelu", CALL, RUNS)
    assert (chosen.backend, chosen.reason) == ("fast", "fastest: slow 2e+03 ms, fast 1e+03 ms")
    (file,) = (tmp_path / run_record.FOLDER).iterdir()
    saved = json.loads(file.read_text())
    assert (saved["kernel"], saved["card"], saved["backend"]) == ("gelu", "card of a test", "fast")
    assert saved["call"] == "x [4, 8] float32, approximate none"
    assert saved["seconds"] == {"slow": 2.0, "fast": 1.0}


def test_one_slow_turn_does_not_decide(seconds):
    """As where the device's clock rises while the first backend is timed."""
    seconds["fast"] = [9.0, 1.0, 1.0]
    assert measurement.fastest("gelu", CALL, RUNS).backend == "fast"


def test_other_ranks_use_the_first_ones_choice(seconds, monkeypatch):
    measurement.fastest("gelu", CALL, RUNS)
    another_rank(monkeypatch)
    seconds.update(slow=1.0, fast=2.0)
    assert measurement.fastest("gelu", CALL, RUNS).backend == "fast"
    # Another length of the same class is the same choice; another class is another.
    assert measurement.fastest("gelu", GeluCall(torch.zeros(4, 6)), RUNS).backend == "fast"
    assert measurement.fastest("gelu", GeluCall(torch.zeros(4, 9)), RUNS).backend == "slow"


def test_ranks_that_measure_at_once_agree(seconds, tmp_path):
    subject = {"kernel": "gelu"}
    with ThreadPoolExecutor(8) as pool:
        held = list(pool.map(lambda rank: run_record.hold(subject, {"backend": rank}), range(8)))
    assert len({one["backend"] for one in held}) == 1
    (file,) = (tmp_path / run_record.FOLDER).iterdir()
    assert json.loads(file.read_text()) == {"kernel": "gelu", "backend": held[0]["backend"]}


def test_a_backend_that_fails_is_left_out_with_its_reason(seconds):
    seconds["fast"] = RuntimeError("out of\nmemory")
    chosen = measurement.fastest("gelu", CALL, RUNS)
    assert chosen.backend == "slow"
    assert chosen.failed == (("fast", "it failed when it was measured: out of memory"),)
    measurement._known.clear()
    seconds["slow"] = RuntimeError("neither")
    measurement._known.clear()


def test_it_is_an_error_if_all_fail(seconds):
    seconds.update(slow=RuntimeError("a"), fast=RuntimeError("b"))
    with pytest.raises(KernelError, match="slow: it failed when it was measured: a; fast: it failed .*: b"):
        measurement.fastest("gelu", CALL, RUNS)


def test_a_damaged_choice_is_named(seconds, tmp_path, monkeypatch):
    measurement.fastest("gelu", CALL, RUNS)
    (file,) = (tmp_path / run_record.FOLDER).iterdir()
    for text, words in (
        ("{", f"{file.name}: is not a kernel choice .* — remove it"),
        ("{}", "kernel-choices in the run directory: {} .'failed'. — remove them"),
    ):
        file.write_text(text)
        another_rank(monkeypatch)
        with pytest.raises(KernelError, match=words):
            measurement.fastest("gelu", CALL, RUNS)


def test_nothing_is_measured_where_ranks_could_not_agree(monkeypatch):
    class OnCuda:
        device = torch.device("cuda", 0)

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.delenv("ASCEND_ADAPT_RUN_DIR", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "several ranks without a run directory" in measurement.why_not(OnCuda)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert measurement.why_not(OnCuda) == ""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert measurement.why_not(OnCuda) == measurement.CAPTURED
    assert measurement.why_not(torch.zeros(1)) == "backends are not measured on cpu"
