"""Native GLM equals GLM's own code, whose results beside_glm.py wrote: samples, batches, rows, and 50 losses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from native import glm_cases
from native.training_bounds import apart

RECORDED = json.loads(Path(__file__).with_name("glm_upstream.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("glm")


@pytest.mark.parametrize("settings", glm_cases.SETTINGS)
def test_samples_and_blanks_are_drawn_as_upstream(folder, settings):
    batches = glm_cases.blank_batches(folder, settings)
    assert glm_cases.samples_digest(batches) == RECORDED["samples"][settings]
    found = [glm_cases.rows_digest(batches[number]) for number in range(len(RECORDED["batches"][settings]))]
    assert found == RECORDED["batches"][settings]


@pytest.mark.parametrize("case", RECORDED["rows"])
def test_rows_of_cloze_tasks_are_upstreams(folder, case):
    task, pattern = case.split()
    assert (
        glm_cases.rows_digest(glm_cases.cloze_batch(glm_cases.cloze(folder, task, int(pattern))))
        == (RECORDED["rows"][case])
    )


def test_50_steps(folder):
    settings = glm_cases.pretraining(folder)
    found = glm_cases.losses(settings)
    assert RECORDED["losses"][-1] < 0.7 * RECORDED["losses"][0]
    # The growth of 50 steps is that of equal_to_upstream.py.
    assert found == pytest.approx(RECORDED["losses"], rel=apart(settings.model, 2 * glm_cases.LENGTH, 5.0))


def test_padding_changes_no_loss(folder):
    settings = glm_cases.pretraining(folder)
    decoder = glm_cases.trainer(settings).decoders[0]
    batch = glm_cases.pretraining_batch(settings, 0)
    longer = {
        name: torch.nn.functional.pad(tensor, (0, 16)) if tensor.dim() > 1 else tensor for name, tensor in batch.items()
    }
    losses = [
        decoder(one["tokens"], **{name: one[name] for name in one if name != "tokens"}) for one in (batch, longer)
    ]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=apart(settings.model, 2 * glm_cases.LENGTH))
