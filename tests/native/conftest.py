"""Jobs that train small models on several ranks, and the same on one process."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native.small_models import GPT2, LENGTH, MODELS, Case, Results, config, train
from native.training_bounds import apart

from ascend_adapt.config.train_config import Data
from ascend_adapt.data.token_index import write_index
from ascend_adapt.native.parallel import mesh as meshes

HERE = Path(__file__).parent

LOSS_GROWTH, NORM_GROWTH = 2.0, 16.0
"""Of these models in 20 steps: see training_bounds, and test_meshes, which measures them."""


@functools.cache
def one_process(model: str, steps: int = 20, micro: int = 1, loss_mean: str = "micro_batches") -> Results:
    """Return what training a model of small_models on one process gives."""
    return train(
        Case(model, model, {"micro": micro}, steps=steps, loss_mean=loss_mean), meshes.single(torch.device("cpu"))
    )


def assert_equal_to_one_process(results: Results, case: Case) -> None:
    """Assert that only rounding differs; with -s pytest shows how far apart losses and gradient norms were."""
    alone = one_process(case.model, case.steps, case.sizes.get("micro", 1), case.loss_mean)
    assert alone.losses[-1] < 0.9 * alone.losses[0], "this model learns nothing, so nothing would be compared"
    far = (largest_difference(results.losses, alone.losses), largest_difference(results.norms, alone.norms))
    print(f"{case.name}, {case.model}: losses {far[0]:.1e}, norms {far[1]:.1e}")
    of_losses, of_norms = (apart(MODELS[case.model], LENGTH, growth) for growth in (LOSS_GROWTH, NORM_GROWTH))
    assert results.losses == pytest.approx(alone.losses, rel=of_losses)
    assert results.norms == pytest.approx(alone.norms, rel=of_norms)
    assert results.evaluated == pytest.approx(alone.evaluated, rel=of_losses)


def largest_difference(these: list[float], those: list[float]) -> float:
    """Return the largest relative difference."""
    return max(abs(one - other) / abs(other) for one, other in zip(these, those, strict=True))


@pytest.fixture
def results_of(tmp_path):
    """results_of(script, cases, options): run the cases in one job of ascend-run; return what the script writes."""

    def run(script: str, cases: list[Case], *options: str) -> Any:
        output = tmp_path / "results.json"
        command = [sys.executable, "-m", "ascend_adapt.launch.cli", *options]
        command += ["--log-dir", str(tmp_path / "run"), str(HERE / script), str(output)]
        ended = subprocess.run(
            [*command, json.dumps([asdict(case) for case in cases])],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-6000:]
        return json.loads(output.read_text())

    return run


@pytest.fixture
def train_on(results_of):
    """train_on(ranks, cases): train the cases on the ranks of one job; return the results by name."""

    def run(ranks: int, cases: list[Case], device: str = "cpu") -> dict[str, Results]:
        results = results_of("train_small.py", cases, "--nproc", str(ranks), "--device", device)
        assert results["device"] == device.partition("-")[0]
        return {name: Results(**values) for name, values in results["cases"].items()}

    return run


@pytest.fixture
def text(tmp_path):
    """Token files of 60 documents; each id determines the next."""
    dice = np.random.default_rng(0)
    ids = [(dice.integers(90) * 7 + 3 * np.arange(dice.integers(20, 60))) % 91 for _ in range(60)]
    np.concatenate(ids).astype(np.uint16).tofile(tmp_path / "text.bin")
    with open(tmp_path / "text.idx", "wb") as stream:
        write_index(stream, np.dtype(np.uint16), np.array([len(one) for one in ids], np.int32))
    return str(tmp_path / "text")


@pytest.fixture
def settings(text):
    made = config(GPT2)
    return replace(
        made,
        data=Data(train=(text,), seq_length=LENGTH, num_workers=0, split="8,1,1"),
        schedule=replace(made.schedule, style="linear", unit="samples", decay=80.0, warmup=16.0),
        iterations=8,
        eval_interval=4,
        eval_iterations=2,
    )
