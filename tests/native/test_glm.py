"""Native GLM equals GLM's own code, whose results beside_glm.py wrote: samples, batches, rows, and 50 losses."""

from __future__ import annotations

import json
from dataclasses import replace
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


@pytest.mark.parametrize("kind", ["pretraining", "finetuning"])
def test_a_resumed_run_continues_bit_for_bit(tmp_path, kind):
    settings = getattr(glm_cases, kind)(tmp_path)
    model = replace(settings.model, hidden_dropout=0.1, attention_dropout=0.1)
    iterations = 6
    cloze = settings.cloze and replace(settings.cloze, epochs=3)
    settings = replace(settings, model=model, iterations=iterations, cloze=cloze, eval_interval=2, eval_iterations=1)
    run = glm_cases.finetune if kind == "finetuning" else glm_cases.pretrain

    def checkpoint(name, **more):
        return replace(settings.checkpoint, save=str(tmp_path / name), at_end=False, asynchronous=False, **more)

    whole = run(replace(settings, checkpoint=checkpoint("whole")), tmp_path / "whole")
    cut = replace(settings, checkpoint=checkpoint("cut", interval=3), exit_interval=3)
    before = run(cut, tmp_path / "cut")
    after = run(
        replace(cut, checkpoint=checkpoint("cut", load=str(tmp_path / "cut")), exit_interval=None), tmp_path / "cut"
    )
    assert before.losses + after.losses == whole.losses
    if kind == "finetuning":
        assert [line for line in after.lines if "|epoch" in line] == [line for line in whole.lines if "|epoch" in line][
            -3:
        ]
        best = [json.loads((tmp_path / name / "best" / "best.json").read_text()) for name in ("cut", "whole")]
        assert best[0] == best[1]
