"""COPA with GLM, with the pattern and scores of finetuning, so that accuracies equal those of a run's validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ascend_adapt.config.glm_config import CHOICES, Cloze
from ascend_adapt.data.json_lines import read_rows
from ascend_adapt.errors import DataError
from ascend_adapt.evaluation.copa import KEYS
from ascend_adapt.evaluation.glm_run import GlmRun
from ascend_adapt.evaluation.language_model import LanguageModel
from ascend_adapt.native.finetuning.cloze_batches import collate
from ascend_adapt.native.finetuning.objective import ClozeObjective
from ascend_adapt.native.finetuning.patterns import Pattern, pattern_of
from ascend_adapt.native.samples import glm_loader
from ascend_adapt.native.samples.blank_infilling import Row
from ascend_adapt.native.samples.cloze_examples import FORMATS, Example

TASK = "copa"


def evaluate(
    model: LanguageModel,
    run: GlmRun,
    data: Path,
    *,
    pattern: int | None,
    batch_size: int,
    report: Callable[[int, int], None],
) -> dict[str, Any]:
    """Return the accuracy on ``data``, JSON lines with SuperGLUE's keys; ``pattern`` defaults to the run's, else 0."""
    rows = read_rows(data, KEYS)
    examples = [
        Example(number, {name: row[name] for name in FORMATS[TASK].texts}, row["label"])
        for number, row in enumerate(rows, 1)
    ]
    cloze = run.cloze or Cloze(TASK, "", run.vocabulary, len(examples), block_positions=run.block_positions)
    cloze = dataclasses.replace(cloze, task=TASK, metric=None, pattern=cloze.pattern if pattern is None else pattern)
    prompts = pattern_of(cloze, run.tokenizer, run.seq_length)
    objective = ClozeObjective(cloze, CHOICES[TASK], None)
    model.decoder.objective = objective
    for start in range(0, len(examples), batch_size):
        chosen = examples[start : start + batch_size]
        batch = collate([_rows(prompts, one, data) for one in chosen], [one.label for one in chosen])
        named = dict(glm_loader.to_device(batch, model.device))
        with torch.no_grad():
            model.decoder(named.pop("tokens"), **named)
        report(start + len(chosen), len(examples))
    right = sum(taken == row["label"] for taken, row in zip(objective.predictions, rows, strict=True))
    penalty = f", divided by the number of its tokens ** {cloze.length_penalty}" if cloze.length_penalty else ""
    return {
        "examples": len(rows),
        "accuracy": right / len(rows),
        "loss": objective.loss_sum / len(rows),
        "protocol": (
            f"GLM's pattern {cloze.pattern}; the choice with the larger sum of the log-probabilities of its tokens and "
            f"[eop] in the blank is taken{penalty}; loss: {cloze.loss}"
        ),
    }


def _rows(prompts: Pattern, example: Example, data: Path) -> list[Row]:
    try:
        return prompts.rows(example)
    except DataError as error:
        raise DataError(f"{data}: {error}") from error
