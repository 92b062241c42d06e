"""Ordinary DeepSpeed jobs on old, middle and new releases, on a CPU with gloo: what runs, and with which numbers.

TABLE is checked in both directions: what runs must have the losses it names, bit for bit; what does not must fail for
the reason it gives. `make test` has the oldest and the newest, `make behaviour` (nox) all of them.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "tests" / "jobs"
NEWEST = "0.19.8"
COMMANDS = {
    "pipeline": ("2", "pipeline.py", "{folder}"),
    "masked_pipeline": ("4", "masked_pipeline.py"),
    "zero_1": ("2", "zero.py", "1", "{folder}"),
    "zero_2": ("2", "zero.py", "2", "{folder}"),
    "zero_3": ("2", "zero.py", "3", "{folder}"),
}


@dataclass(frozen=True)
class Runs:
    """It runs; ``like`` names the release, or the reference, whose losses it has bit for bit."""

    like: str = NEWEST


@dataclass(frozen=True)
class Fails:
    """It does not run: ``text`` is in what it prints; ``unless`` is a program that would help."""

    text: str
    unless: str = ""


PLAIN = Runs("plain")
# The optimizer is made with a step on gradients of zero, which leaves Adam's bias correction one step ahead.
AHEAD = Runs("one_step_ahead")
OWN_ROUNDING = Runs("0.16.9")  # differs from all others in the last digits; the cause was not looked for
TABLE: dict[str, dict[str, Runs | Fails]] = {
    "0.9.2": {
        "pipeline": Runs(),
        "masked_pipeline": Runs(),
        "zero_1": AHEAD,
        "zero_2": AHEAD,
        "zero_3": Fails("unknown parameter type"),  # record_stream of a CPU tensor
    },
    "0.11.1": {"pipeline": Runs(), "masked_pipeline": Runs(), "zero_1": AHEAD, "zero_2": AHEAD, "zero_3": AHEAD},
    "0.12.6": {"pipeline": Runs(), "masked_pipeline": Runs(), "zero_1": AHEAD, "zero_2": AHEAD, "zero_3": AHEAD},
    "0.14.5": {
        "pipeline": Runs(),
        "masked_pipeline": Runs(),
        "zero_1": PLAIN,
        "zero_2": PLAIN,
        "zero_3": PLAIN,
    },
    "0.16.9": {
        "pipeline": OWN_ROUNDING,
        "masked_pipeline": OWN_ROUNDING,
        "zero_1": PLAIN,
        "zero_2": PLAIN,
        "zero_3": PLAIN,
    },
    NEWEST: {"pipeline": Runs(), "masked_pipeline": Runs(), "zero_1": PLAIN, "zero_2": PLAIN, "zero_3": PLAIN},
}
# tests/plugins/test_deepspeed_0_9_2.py has the masked pipeline of both.
IN_CI = {"0.9.2": ("pipeline",), NEWEST: ("pipeline", "zero_1")}
ASKED = os.environ.get("DEEPSPEED_RELEASE", "").replace("newest", NEWEST)
CHOSEN = {ASKED: tuple(TABLE.get(ASKED, ()))} if ASKED else IN_CI

# Release -> jobs of tests/jobs/weights_alone.py, and what each says without the two patches; where it says nothing, the
# weights that were there before come back with the first step. CI has the first of the oldest release.
NO_FILE, COME_BACK = "FileNotFoundError", ""
WEIGHTS_ALONE = {
    "0.9.2": {("1", "float32", "removed"): NO_FILE, ("0", "float16", "kept"): COME_BACK},
    "0.11.1": {("1", "float32", "removed"): COME_BACK, ("1", "bfloat16", "removed"): COME_BACK},
    NEWEST: {("0", "float16", "kept"): COME_BACK},
}
# Release -> the optimizer's patches for GPUs and NPUs that apply to it. For each patch, the oldest of its releases that
# runs on a CPU is here, and the newest.
SINCE_0_9_2 = [
    "batched_copies_to_partition",
    "batched_gradient_norm",
    "deferred_copy_to_partition",
    "slice_moved_weights",
]
SINCE_0_17_2 = [
    "skip_average_of_one_rank",
    "batched_copies_to_bucket",
    "batched_overflow_check",
    "deferred_copy_to_bucket",
    *SINCE_0_9_2,
]
FEWER_OPERATIONS = {
    "0.9.2": SINCE_0_9_2,
    "0.17.2": SINCE_0_17_2,
    "0.19.2": ["flat_gradient_without_copy", *SINCE_0_17_2],
    NEWEST: ["flat_gradient_without_copy", *SINCE_0_17_2],
}

ALONE = [
    (one, job)
    for one, jobs in WEIGHTS_ALONE.items()
    for job in jobs
    if one == ASKED or (not ASKED and (one, job) == ("0.9.2", ("1", "float32", "removed")))
]


def environment(release: str) -> Path:
    return ROOT / (".venv" if release == NEWEST else f".nox/deepspeed-{release.replace('.', '-')}")


@functools.cache
def run(release: str, job: str) -> tuple[int, dict[str, Any], str]:
    """Run a job; return its exit code, what its last rank printed, and everything it said."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(release, folder, [word.format(folder=f"{folder}/checkpoint") for word in COMMANDS[job]])


def _run(release: str, folder: str, words: list[str], options: tuple[str, ...] = ()) -> tuple[int, dict[str, Any], str]:
    nproc, script, *arguments = words
    command = [environment(release) / "bin" / "ascend-run", "--nproc", nproc, "--device", "cpu", *options]
    command += ["--log-dir", f"{folder}/run", JOBS / script, *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": f"{folder}/extensions"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environ, cwd=folder)
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"deepspeed"')]
    return done.returncode, printed[0] if printed else {}, done.stdout + done.stderr


@functools.cache
def reference(kind: str) -> list[str]:
    """The first losses of tests/jobs/zero.py in plain torch, one process, without DeepSpeed or any patch."""
    command = [sys.executable, str(JOBS / "zero_in_plain_torch.py"), kind]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ, check=True)
    losses: list[str] = json.loads(done.stdout.splitlines()[-1])  # DeepSpeed itself talks before
    return losses


@pytest.mark.parametrize(("release", "job"), [(release, job) for release in CHOSEN for job in CHOSEN[release]])
def test_a_job_does_what_the_table_says(release: str, job: str) -> None:
    expected = TABLE[release][job]
    code, reported, text = run(release, job)
    if isinstance(expected, Fails):
        if expected.unless and shutil.which(expected.unless):
            pytest.skip(f"{expected.unless} is here, so {expected.text!r} does not happen")
        assert (code != 0, expected.text in text) == (True, True), text[-2000:]
        return
    assert code == 0, text[-4000:]
    assert reported["deepspeed"].startswith(release)
    if "loaded" in reported:
        assert reported["backend"] == "gloo"  # 'nccl' was asked for
        assert reported["loaded"] == reported["continued"]
    if job == "pipeline":
        assert reported["with_logits"] == reported["evaluated"]
        assert reported["logits"] == [2, 8, 32]
    if expected in (PLAIN, AHEAD):
        assert reported["trained"] == reference(expected.like)
    elif expected.like != release:
        _, like, text = run(expected.like, job)
        assert {**reported, "deepspeed": ""} == {**like, "deepspeed": ""}, text[-2000:]


@pytest.mark.parametrize(
    ("release", "job"), ALONE, ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_what_is_loaded_without_the_optimizers_states_is_what_is_trained(release: str, job: tuple[str, ...]) -> None:
    code, reported, text = _weights_alone(release, job)
    assert code == 0, text[-4000:]
    assert (reported["loaded"], reported["after a step of nothing"]) == (0.0, 0.0)
    code, reported, text = _weights_alone(
        release, job, "--disable", "deepspeed.skip_optimizer_states", "--disable", "deepspeed.refresh_master_weights"
    )
    if without := WEIGHTS_ALONE[release][job]:
        assert (code != 0, without in text) == (True, True), text[-2000:]
    else:
        assert (reported["loaded"], reported["after a step of nothing"] > 0.1) == (0.0, True)


def _weights_alone(release: str, job: tuple[str, ...], *options: str) -> tuple[int, dict[str, Any], str]:
    with tempfile.TemporaryDirectory() as folder:
        return _run(release, folder, ["1", "weights_alone.py", *job, f"{folder}/checkpoint"], options)


@pytest.mark.parametrize("nproc", ["1", "2"])
@pytest.mark.parametrize("release", [one for one in FEWER_OPERATIONS if one == (ASKED or NEWEST)])
def test_fewer_operations_give_the_same_bits(release: str, nproc: str) -> None:
    """Losses, gradient norms, weights and master weights, also if a step is skipped because one rank has a NaN."""
    with tempfile.TemporaryDirectory() as folder:
        code, reported, text = _run(release, folder, [nproc, "zero_operations.py"])
    assert code == 0, text[-4000:]
    assert reported["deepspeed"].startswith(release)
    assert reported["applied"] == sorted(FEWER_OPERATIONS[release])
    assert reported["differ"] == [[]] * int(nproc)
    assert all(after < before for before, after in reported["operations"].values()), reported["operations"]


@pytest.mark.skipif(NEWEST not in CHOSEN, reason="its environment is not asked for")
def test_bf16_in_the_pipeline_engine_is_resumed() -> None:
    """Its fp32 weights after each step are those of the uninterrupted run, bit for bit, on two data ranks."""
    code, reported, text = _resumed()
    assert code == 0, text[-4000:]
    assert reported["on"] == reported["resumed"]
    assert reported["shapes"] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    if ASKED:
        code, reported, text = _resumed("--disable", "deepspeed.save_bf16_param_shapes", nproc="1")
        assert (code, reported["on"] == reported["resumed"], reported["shapes"]) == (0, True, []), text[-4000:]
    both = ("--disable", "deepspeed.bf16_optimizer_states_per_rank", "--disable", "deepspeed.save_bf16_param_shapes")
    code, _, text = _resumed(*both, nproc="1")
    assert (code != 0, "KeyError" in text) == (True, True), text[-2000:]


def _resumed(*options: str, nproc: str = "2") -> tuple[int, dict[str, Any], str]:
    with tempfile.TemporaryDirectory() as folder:
        return _run(NEWEST, folder, [nproc, "bf16_resumed.py", f"{folder}/checkpoint"], options)


@pytest.mark.skipif(not ASKED, reason="only on the releases of make behaviour")
def test_the_references_differ() -> None:
    assert reference("plain")[0] == reference("one_step_ahead")[0]
    assert reference("plain")[1:] != reference("one_step_ahead")[1:]


@pytest.mark.skipif(ASKED != "0.6.0", reason="only where its environment is asked for: make behaviour")
def test_0_6_0_goes_as_far_as_it_goes() -> None:
    """It can be imported, and its pipeline is patched; training needs CUDA, which it asks for directly."""
    code = """
import ascend_adapt
ascend_adapt.enable(device="cpu", strict=True)
import deepspeed
assert deepspeed.__version__.startswith("0.6.0")
states = {one.patch: one.state for one in ascend_adapt.status().outcomes}
for name in ("torch_six", "numpy_bufsize", "keep_missing_grads", "set_has_attention_mask", "eval_batch_with_logits"):
    assert states[name] == "applied", (name, states[name])
"""
    command = [environment("0.6.0") / "bin" / "python", "-c", code]
    job = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert job.returncode == 0, job.stderr
