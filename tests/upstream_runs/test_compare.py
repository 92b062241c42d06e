"""Comparing a job as it is with the adapted one: what is measured, and how it is reported."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import compare
import pytest
import upstream_job
from upstream_job import Ended, Model, UpstreamJob

REPORT = {"outcomes": [], "problems": []}
TORCH = """
import sys, types
known = dict(is_available=True, is_initialized={used}, max_memory_allocated=7, get_device_name="X")
cuda = types.SimpleNamespace(**{{name: lambda value=value: value for name, value in known.items()}})
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
"""


def test_the_time_of_a_step_is_between_its_loss_and_the_one_before() -> None:
    assert compare.steps_ms([*range(7), 6.5], 8) == [pytest.approx(1000), pytest.approx(500)]
    # Two ranks print each loss, and a third line is missing.
    both = [at for step in range(8) for at in (step, step + 0.25)]
    assert compare.steps_ms(both, 8) == [pytest.approx(1000)] * 2
    assert compare.steps_ms(both[:-1], 8) == []
    assert compare.steps_ms([], 0) == []


def test_a_model_is_named_by_what_differs_from_gpt_2() -> None:
    assert compare.model("layers=24,hidden=1024") == Model(layers=24, hidden=1024)
    assert compare.model("") == Model()
    for text in ("layer=2", "layers", "layers=two"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected NAME=NUMBER with a name of layers, hidden"):
            compare.model(text)


@pytest.mark.parametrize(("used", "expected"), [(True, {"allocated": 7, "card": "X"}), (False, None)])
def test_a_process_that_used_a_gpu_reports_its_peak(used: bool, expected, tmp_path) -> None:
    path = str(Path(compare.HERE, "measuring"))
    environ = {**os.environ, "PYTHONPATH": path, "UPSTREAM_RUNS_PEAKS": str(tmp_path), "RANK": "3"}
    subprocess.run([sys.executable, "-c", TORCH.format(used=used)], env=environ, check=True)
    reported = [json.loads(file.read_text()) for file in tmp_path.glob("3-*.json")]
    assert reported == ([expected] if expected else [])


def sides(monkeypatch, tmp_path, losses: dict[str, tuple[float, ...]]) -> tuple[list[str], int]:
    """Compare a job whose runs ("plain", "needed", "adapted") report these losses, or fail for want of any."""
    ran = []

    def run(job, place, *, disable=(), adapt=True) -> Ended:
        kind = "needed" if disable else "adapted" if adapt else "plain"
        kind += " in fp32" * (place.dtype == "float32")
        ran.append(kind)
        reported = losses.get(kind, ())
        Path(job.variables["UPSTREAM_RUNS_PEAKS"], "0-1.json").write_text(json.dumps({"allocated": 2**30, "card": "X"}))
        times = tuple(float(step) for step in range(len(reported)))
        return Ended(int(not reported), reported, "ImportError: no apex\n", REPORT, place.folder, times)

    monkeypatch.setattr(upstream_job, "run", run)
    known = argparse.Namespace(device="cuda", dtype="bfloat16", model=Model(), rounds=2, json=tmp_path / "seen.jsonl")
    return ran, compare.compare("base", UpstreamJob("one", lambda place: ()), known, tmp_path, ["p.fast"])


def test_both_sides_run_by_turns(monkeypatch, tmp_path, capsys) -> None:
    ran, code = sides(monkeypatch, tmp_path, {"plain": (3.0,) * 8, "adapted": (3.001,) * 8})
    assert (ran, code) == (["plain", "adapted"] * 2, 0)
    reported = capsys.readouterr().out
    assert "plain: 1000.0 ms a step, median of 4, 1.00 GiB" in reported
    assert "adapted on X: 1.00x the speed, 1.00x the memory" in reported
    assert json.loads((tmp_path / "seen.jsonl").read_text())["apart"] == pytest.approx(1 / 3001)


def test_what_does_not_run_plain_is_compared_without_what_is_for_speed(monkeypatch, tmp_path, capsys) -> None:
    ran, code = sides(monkeypatch, tmp_path, {"needed": (3.0,) * 8, "adapted": (3.0,) * 8})
    assert (ran, code) == (["plain", "needed", "adapted", "needed", "adapted"], 0)
    assert "plain does not run: ImportError: no apex; in its place: no patch for speed" in capsys.readouterr().out


@pytest.mark.parametrize("adapted", [(), (3.1,) * 8])
def test_adapted_must_run_with_the_same_losses(monkeypatch, tmp_path, adapted) -> None:
    _, code = sides(monkeypatch, tmp_path, {"plain": (3.0,) * 8, "adapted": adapted})
    assert code == 1


@pytest.mark.parametrize(
    ("exact", "code"),
    [
        ((3.0, 9.3, 3.0, 3.0), 0),  # they part where plain, too, is far from fp32
        ((3.0, 9.0, 3.0, 3.0), 1),  # where plain is not
        ((3.0, 9.3, 3.0), 1),
        ((), 1),
    ],
)
def test_what_is_apart_is_held_against_plain_in_fp32(monkeypatch, tmp_path, capsys, exact, code) -> None:
    losses = {"plain": (3.001, 9.01, 3.001, 3.001), "adapted": (3.001, 9.3, 3.001, 2.999), "plain in fp32": exact}
    ran, seen = sides(monkeypatch, tmp_path, losses)
    assert (ran, seen) == ([*["plain", "adapted"] * 2, "plain in fp32"], code)
    assert "losses at most 3.1e-02 apart, of 1e-02, at step 2 (9.01 and 9.3)" in capsys.readouterr().out


def test_a_steady_distance_is_no_noise(capsys) -> None:
    """Every loss 1 % off, of which plain's worst step is, too."""
    assert not compare.within_noise((3.0,) * 4, (3.03, 3.001, 3.001, 3.001), (3.03,) * 4)
    reported = capsys.readouterr().out
    assert "plain from float32: at most 9.9e-03, at step 1 (3 and 3.03); at the median step 3.3e-04" in reported


def test_where_two_runs_part_is_reported() -> None:
    assert compare._where((4.0, 8.0, 2.0), (4.0, 6.0, 2.0)) == ", at step 2 (8 and 6); at the median step 0.0e+00"
    assert compare._where((4.0, 8.0), (4.0,)) == ": 2 losses and 1"
