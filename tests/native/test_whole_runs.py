"""50 steps from an upstream's own arguments give the losses that this upstream printed, from the same weights.

They were recorded by whole_runs_beside_upstream.py, which put the weights that the native trainer draws into the
unmodified code base. Nothing of any code base is needed here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from native import fixed_text
from native.conftest import largest_difference
from native.training_bounds import apart, perturbed
from native.whole_runs import RUNS, STEPS

from ascend_adapt.native import loop
from ascend_adapt.recipes import dialects

LOSSES = json.loads(Path(__file__).with_name("upstream_losses.json").read_text())


class Losses(list):
    """A log that keeps the losses of the steps."""

    def say(self, text):
        """Do nothing."""

    def step(self, metrics):
        """Take note of an iteration."""
        self.append(metrics.lm_loss)

    def evaluation(self, iteration, part, loss):
        """Do nothing."""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return fixed_text.write(tmp_path_factory.mktemp("text"))


def test_every_run_is_recorded():
    assert set(LOSSES) == {run.name for run in RUNS}
    assert all(len(recorded["upstream"]) == STEPS for recorded in LOSSES.values())
    # Otherwise equal losses would say little.
    assert all(min(recorded["upstream"]) < 0.7 * recorded["upstream"][0] for recorded in LOSSES.values())


def train(run, text, folder):
    """Return the configuration that the run's arguments give, and its losses."""
    arguments = [*run.arguments(folder, text), "--upstream-version", run.line]
    config, _ = dialects.read(run.dialect, arguments).build(1)
    losses = Losses()
    loop.train(config, folder, losses)
    return config, losses


# On more ranks the native trainer is compared with itself on one, in test_meshes.py.
@pytest.mark.parametrize("run", [run for run in RUNS if run.ranks == 1], ids=lambda run: run.name)
def test_50_steps(run, text, tmp_path):
    config, losses = train(run, text, tmp_path)
    bound = apart(config.model, config.data.seq_length, run.growth)
    assert losses == pytest.approx(LOSSES[run.name]["upstream"], rel=bound)


def test_a_run_magnifies_a_difference_by_no_more_than_its_bound_assumes(text, tmp_path):
    run, by = max(RUNS, key=lambda run: run.growth), 2.0**-16
    with perturbed(by):
        _, losses = train(run, text, tmp_path)
    assert by < largest_difference(losses, LOSSES[run.name]["upstream"]) < run.growth * by
