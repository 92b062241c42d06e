"""A run from token files to its end, on one process: its log, its checkpoints, and resuming."""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from native import fixed_text
from native.small_models import GPT2, LENGTH

from ascend_adapt import cli
from ascend_adapt.config.text_samples import TextSamples
from ascend_adapt.config.train_config import Batch, Checkpoint, Parallel
from ascend_adapt.data import IndexedDataset
from ascend_adapt.data.token_index import write_index
from ascend_adapt.errors import ConfigError, DataError, TrainingError
from ascend_adapt.native import loop
from ascend_adapt.native.metrics.run_log import RunLog


class RecordingLog:
    """A run log that keeps everything in memory."""

    def __init__(self):
        self.said, self.steps, self.evaluations = [], [], []

    def say(self, text):
        self.said.append(text)

    def step(self, metrics):
        self.steps.append(metrics)

    def evaluation(self, iteration, part, loss):
        self.evaluations.append((iteration, part, loss))

    @property
    def losses(self):
        return [step.lm_loss for step in self.steps]


def run(settings):
    log = RecordingLog()
    loop.train(settings, "unused", log)
    return log


def test_a_run(settings):
    log = run(settings)
    assert [step.iteration for step in log.steps] == list(range(1, 9))
    assert [step.consumed_samples for step in log.steps] == [8 * number for number in range(1, 9)]
    assert {(step.samples, step.tokens, step.skipped, step.nan) for step in log.steps} == {
        (8, 8 * LENGTH, False, False)
    }
    # The rate of the step to come: warm-up over two steps, then down to nothing at the tenth.
    rates = [3e-3 * factor for factor in (1 / 2, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8)]
    assert [step.learning_rate for step in log.steps] == pytest.approx(rates)
    assert log.losses[-1] < log.losses[0] - 0.2
    assert [(iteration, part) for iteration, part, _ in log.evaluations] == [(4, "valid"), (8, "valid"), (8, "test")]
    assert log.evaluations[1][2] < log.evaluations[0][2]
    assert log.said == ["starting from random weights: --load was not given"]


def test_a_resumed_run_equals_an_uninterrupted_one(settings, tmp_path):
    model = replace(GPT2, hidden_dropout=0.1, attention_dropout=0.1)
    settings = replace(settings, model=model)
    folder = tmp_path / "saved"
    whole = run(settings)
    checkpoint = Checkpoint(save=str(folder), load=str(folder), interval=4)
    first = run(replace(settings, checkpoint=checkpoint, exit_interval=4))
    assert first.said == [
        f"starting from random weights: {folder} has no checkpoint yet, and the run will be saved there",
        f"saving {folder / 'iter_0000004'}",
        "stopping after iteration 4, as requested",
    ]
    assert (folder / "latest_checkpointed_iteration.txt").read_text() == "4"
    then = run(replace(settings, checkpoint=checkpoint))
    assert then.said[0] == f"resuming from {folder / 'iter_0000004'}, iteration 4"
    assert first.losses + then.losses == whole.losses
    assert first.evaluations + then.evaluations == whole.evaluations
    log = [step.learning_rate for step in (*first.steps, *then.steps)]
    assert log == [step.learning_rate for step in whole.steps]
    # At its end there is nothing left but the last evaluation.
    again = run(replace(settings, checkpoint=checkpoint))
    assert (again.losses, again.evaluations) == ([], whole.evaluations[-1:])


def test_a_resumed_run_trains_and_saves_with_the_schedule_of_its_checkpoint(settings, tmp_path):
    folder, schedule = tmp_path / "saved", replace(settings.schedule, lr=1.0)
    checkpoint = Checkpoint(save=str(folder), load=str(folder), resume_schedule="checkpoint")
    settings = replace(settings, eval_interval=0, iterations=4, checkpoint=checkpoint)
    first = run(replace(settings, exit_interval=2))
    then = run(replace(settings, schedule=schedule))
    assert then.said[1:] == [
        "schedule.lr: 0.003 -> 1.0, the checkpoint's value is used",
        f"saving {folder / 'iter_0000004'}",
    ]
    assert [step.learning_rate for step in (*first.steps, *then.steps)] == pytest.approx(
        [3e-3 * factor for factor in (1 / 2, 1, 7 / 8, 6 / 8)]
    )
    progress = json.loads((folder / "iter_0000004" / "progress.json").read_text())
    assert progress["config"]["schedule"]["lr"] == 3e-3


def test_an_empty_folder_may_be_named_twice_in_different_ways(settings, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    checkpoint = Checkpoint(save=str(tmp_path / "link"), load=str(tmp_path / "link" / ".." / "disk"))
    log = run(replace(settings, iterations=1, eval_interval=0, checkpoint=checkpoint))
    assert log.said[0].startswith("starting from random weights: ")


@pytest.mark.parametrize("order", ["megatron-v2", "bigscience", "mcore", "neox"])
def test_text_that_is_just_enough_lasts_to_the_end(settings, tmp_path, order):
    """One epoch of 17 tokens is one sample: as many epochs as steps, and GPT-NeoX hides the last."""
    text = tmp_path / "short"
    np.arange(17, dtype=np.uint16).tofile(f"{text}.bin")
    with open(f"{text}.idx", "wb") as stream:
        write_index(stream, np.dtype(np.uint16), np.array([17], np.int32))
    data = replace(settings.data, train=(str(text),), valid=(str(text),), test=(str(text),), order=order)
    log = run(replace(settings, data=data))
    assert (len(log.steps), len(log.evaluations)) == (8, 3)


def test_samples_that_will_not_last_are_reported_before_the_first_step(settings, tmp_path):
    kept = str(tmp_path / "kept")
    run(replace(settings, iterations=20, exit_interval=18, checkpoint=Checkpoint(save=kept)))
    smaller = replace(settings, iterations=20, batch=Batch(1, 2, 2), checkpoint=Checkpoint(load=kept))
    with pytest.raises(
        DataError, match="train: 0 samples left after 144, expected 4 for the remaining 2 steps — increase"
    ):
        run(smaller)


def test_token_files_that_changed_are_named(settings, text, tmp_path):
    kept = str(tmp_path / "kept")
    run(replace(settings, checkpoint=Checkpoint(save=kept), iterations=4))
    again = replace(settings, checkpoint=Checkpoint(load=kept), iterations=4)
    assert len(run(again).said) == 1
    sizes = np.array(IndexedDataset(text).sizes)
    with open(f"{text}.idx", "wb") as stream:
        write_index(stream, np.dtype(np.uint16), sizes[::-1])
    (log,) = run(again).said[1:]
    assert re.search(
        rf"repeated or skipped: {text} was (60 sequences of \d+ tokens) \(sizes \w+\), is \1 \(sizes \w+\)$",
        log,
    )


def test_finetuning_takes_weights_only(settings, tmp_path):
    folder = tmp_path / "saved"
    run(replace(settings, checkpoint=Checkpoint(save=str(folder), save_optimizer=False, keep_last=1, interval=4)))
    assert sorted(path.name for path in folder.glob("iter_*")) == ["iter_0000008"]
    log = run(replace(settings, checkpoint=Checkpoint(load=str(folder), finetune=True)))
    assert log.said[0] == f"weights of {folder / 'iter_0000008'}, from iteration 0"
    assert log.steps[0].iteration == 1
    assert log.losses[0] < 4.4
    with pytest.raises(
        TrainingError, match=r"lacks \d+ optimizer states, such as optimizer\.embedding.*, expected all"
    ):
        run(replace(settings, checkpoint=Checkpoint(load=str(folder))))
    larger = replace(GPT2, ffn_hidden_size=128)
    with pytest.raises(TrainingError, match=r"dense_h_to_4h.weight is \[64, 32\], expected \[128, 32\] — configure"):
        run(replace(settings, model=larger, checkpoint=Checkpoint(load=str(folder), finetune=True)))


def test_a_checkpoint_before_the_first_step(settings, tmp_path):
    saved = Checkpoint(save=str(tmp_path / "saved"), steps=(0, 2), at_end=False)
    run(replace(settings, checkpoint=saved, iterations=3, eval_interval=0))
    assert sorted(path.name for path in (tmp_path / "saved").glob("iter_*")) == ["iter_0000000", "iter_0000002"]
    progress = json.loads((tmp_path / "saved" / "iter_0000002" / "progress.json").read_text())
    assert (progress["iteration"], progress["consumed_samples"], progress["scheduled"]) == (2, 16, 16)


def test_a_batch_that_grows(settings):
    log = run(replace(settings, batch=Batch(1, 8, 8, rampup=(2, 2, 12)), eval_interval=0))
    sizes = [step.samples for step in log.steps]
    assert sizes[0] == 2
    assert sizes == sorted(sizes)
    assert sizes[-1] == 8
    assert log.steps[-1].consumed_samples == sum(sizes)


def test_a_run_that_fails_leaves_no_worker_behind(settings, tmp_path):
    """One that was left would keep the rank from ever ending."""
    (tmp_path / "saved" / "iter_0000002" / "of another trainer").mkdir(parents=True)
    data = replace(settings.data, num_workers=1)
    with pytest.raises(TrainingError, match="iter_0000002: not saved") as error:
        run(replace(settings, data=data, checkpoint=Checkpoint(save=str(tmp_path / "saved"), interval=2)))
    assert error.traceback
    assert multiprocessing.active_children() == []


def test_an_evaluation_alone_gives_the_test_loss_of_the_end_of_training(settings, tmp_path):
    saved = replace(settings, checkpoint=Checkpoint(save=str(tmp_path)))
    trained = run(saved)
    before = sorted(tmp_path.rglob("*"))
    found = run(replace(saved, checkpoint=Checkpoint(load=str(tmp_path))).for_evaluation())
    assert found.steps == []
    assert [(iteration, part) for iteration, part, _ in found.evaluations] == [(8, "valid"), (8, "test")]
    assert found.evaluations[-1] == trained.evaluations[-1]
    assert sorted(tmp_path.rglob("*")) == before


def test_an_evaluation_alone_needs_a_checkpoint_and_something_to_evaluate(settings):
    with pytest.raises(ConfigError, match=r"--eval-only: without --load, .* add --load"):
        settings.for_evaluation()
    loaded = replace(settings, checkpoint=Checkpoint(load="there"), eval_interval=0)
    with pytest.raises(ConfigError, match=r"--eval-only: with eval interval 0 .* set them"):
        loaded.for_evaluation()


def test_parts_without_a_share_are_not_evaluated(settings):
    assert run(replace(settings, data=replace(settings.data, split="1,0,0"), iterations=4)).evaluations == []


def test_a_wrong_number_of_ranks_and_too_little_text(settings, monkeypatch):
    data = replace(settings.data, seq_length=LENGTH, train=("missing",))
    with pytest.raises(DataError):
        run(replace(settings, data=data))
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="ranks: 3, expected tensor 1 x pipeline 1 x data 1 = 1"):
        run(settings)


def test_the_time_limit(settings, tmp_path):
    checkpoint = Checkpoint(save=str(tmp_path / "saved"))
    log = run(replace(settings, exit_duration_minutes=0.0, checkpoint=checkpoint))
    assert len(log.steps) == 1
    assert log.said[-2:] == [
        f"saving {tmp_path / 'saved' / 'iter_0000001'}",
        "stopping after iteration 1, as requested by a signal or the time limit",
    ]


@pytest.fixture
def spoiled_step(monkeypatch):
    """spoiled_step(N): a weight is NaN from step N on."""
    from ascend_adapt.native.step.trainer import Trainer

    step, done = Trainer.step, []

    def spoil(number):
        def spoiled(self, *given, **named):
            done.append(1)
            if len(done) == number:
                next(one for one in self.parameters if one.name == "layers.1.mlp.dense_h_to_4h.weight").local[0] = (
                    math.nan
                )
            return step(self, *given, **named)

        monkeypatch.setattr(Trainer, "step", spoiled)

    return spoil


CAUSE = "rank 0 (stage 0, data 0, tensor 0): weights of 1 parameters, the first layers.1.mlp.dense_h_to_4h.weight"


def test_a_nan_loss_ends_the_run_and_names_the_latest_checkpoint(settings, tmp_path, spoiled_step):
    spoiled_step(6)
    log, folder = RecordingLog(), tmp_path / "saved"
    settings = replace(settings, eval_interval=0, checkpoint=Checkpoint(save=str(folder), interval=4, keep_last=1))
    with pytest.raises(TrainingError) as error:
        loop.train(settings, "unused", log)
    assert str(error.value) == (
        f"iteration 6: loss nan, gradient norm nan, {CAUSE}; expected finite values — resume from "
        f"{folder / 'iter_0000004'}; lower the learning rate or train in fp32, or continue anyway with "
        "--no-check-for-nan-in-loss-and-grad"
    )
    assert log.steps[-1].nan
    assert log.said[-2:] == ["warning: iteration 6: loss nan, gradient norm nan", f"  {CAUSE}"]
    assert [one.name for one in folder.glob("iter_*")] == ["iter_0000004"]
    assert not torch.distributed.is_initialized()


def test_without_the_check_a_run_with_nan_continues_but_never_saves_it(settings, tmp_path, spoiled_step):
    spoiled_step(2)
    settings = replace(settings, iterations=3, eval_interval=0, check_for_nan_in_loss_and_grad=False)
    log = run(settings)
    assert [step.nan for step in log.steps] == [False, True, True]
    spoiled_step(4)
    with pytest.raises(TrainingError, match="iteration 3: weights are NaN or Inf and were not saved, .* — no "):
        run(replace(settings, checkpoint=Checkpoint(save=str(tmp_path / "saved"))))
    assert list((tmp_path / "saved").glob("iter_*")) == []


@pytest.fixture
def spoiled_gradient(monkeypatch):
    """spoiled_gradient(N): one gradient of step N is NaN."""
    from ascend_adapt.native.step import gradients

    complete, done = gradients.complete, []

    def spoil(number):
        def spoiled(parameters, *given, **named):
            complete(parameters, *given, **named)
            done.append(1)
            if len(done) == number:
                next(one for one in parameters if one.name == "layers.1.mlp.dense_h_to_4h.weight").gradient[0] = (
                    math.nan
                )

        monkeypatch.setattr(gradients, "complete", spoiled)

    return spoil


GRADIENT = (
    "rank 0 (stage 0, data 0, tensor 0): gradients of 1 parameters, nearest to the loss "
    "layers.1.mlp.dense_h_to_4h.weight"
)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_gradient_with_nan_ends_the_run_and_is_named(settings, spoiled_gradient, kind):
    spoiled_gradient(3)
    settings = replace(settings, eval_interval=0, optimizer=replace(settings.optimizer, kind=kind))
    with pytest.raises(TrainingError, match="iteration 3: loss 4.*, gradient norm nan, ") as error:
        run(settings)
    assert GRADIENT in str(error.value)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_without_the_check_a_step_whose_gradient_has_nan_is_skipped(settings, tmp_path, spoiled_gradient, kind):
    spoiled_gradient(2)
    settings = replace(settings, eval_interval=0, check_for_nan_in_loss_and_grad=False, iterations=4)
    settings = replace(settings, optimizer=replace(settings.optimizer, kind=kind))
    log = run(replace(settings, checkpoint=Checkpoint(save=str(tmp_path / "saved"))))
    assert [(step.skipped, step.nan) for step in log.steps] == [(False, False), (True, False)] + [(False, False)] * 2
    assert [math.isfinite(step.grad_norm) for step in log.steps] == [True, False, True, True]
    # Like a step skipped by a loss scale, it does not advance the schedule.
    assert log.steps[1].learning_rate == log.steps[0].learning_rate
    assert log.said[-3:-1] == [f"warning: iteration 2: loss {log.losses[1]:g}, gradient norm nan", f"  {GRADIENT}"]
    assert [one.name for one in (tmp_path / "saved").glob("iter_*")] == ["iter_0000004"]


def test_samples_of_text_are_generated_at_each_evaluation(settings, tmp_path):
    files = fixed_text.write(tmp_path / "text")
    samples = TextSamples(("The license", "You may"), tokens=5)
    data = replace(settings.data, vocab_file=str(files.vocabulary), merge_file=str(files.merges))
    model = replace(GPT2, vocab_size=257, padded_vocab_size=384)
    logging = replace(settings.logging, interval=1)
    settings = replace(settings, model=model, data=data, logging=logging, text_samples=samples, iterations=4)
    folder = tmp_path / "run"
    log = RunLog(settings, folder, rank=0, output=io.StringIO())
    loop.train(replace(settings, checkpoint=Checkpoint(save=str(tmp_path / "saved"))), folder, log)
    log.close()
    rows = [json.loads(row) for row in (folder / "samples.jsonl").read_text().splitlines()]
    assert [(row["iteration"], row["prompt"]) for row in rows] == [(4, "The license"), (4, "You may")]
    # The command continues the same prompts with the checkpoint of that iteration.
    words = [word for prompt in samples.prompts for word in ("--prompt", prompt)]
    command = ["generate", "--model", str(tmp_path / "saved"), *words, "--max-new-tokens", "5", "--device", "cpu"]
    output = tmp_path / "generated.json"
    assert cli.main([*command, "--output", str(output)]) == 0
    assert [row["text"] for row in rows] == [one["text"] for one in json.loads(output.read_text())["results"]]
    # Nothing of the training changes.
    plain = run(replace(settings, text_samples=None))
    assert [json.loads(row)["lm_loss"] for row in (folder / "metrics.jsonl").read_text().splitlines()] == plain.losses


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"parallel": Parallel(pipeline=2, stages=(2, 2))}, "2 pipeline stages, none of which has the full model"),
        ({"eval_interval": 0}, "no evaluations"),
        ({}, "no tokenizer given"),
    ],
)
def test_runs_that_cannot_generate_samples_are_refused(settings, changes, why):
    with pytest.raises(
        ConfigError, match=f"--sample-prompts: with .*{why}.* — change these settings, or omit --sample-prompts"
    ):
        replace(settings, text_samples=TextSamples(("a",)), **changes)
