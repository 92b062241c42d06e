"""COPA (SuperGLUE): choose the more likely of two choices after a premise and a connective, scored as in lm-eval."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ascend_adapt.data.json_lines import one_of, read_rows, text
from ascend_adapt.evaluation.language_model import LanguageModel
from ascend_adapt.evaluation.scoring import score
from ascend_adapt.evaluation.text import TextTokenizer

PROTOCOL = (
    "the premise without its last character, 'because' or 'therefore', then each choice with a lower-case first "
    "letter; the choice with the larger sum of log-probabilities is taken"
)
CONNECTIVES = {"cause": "because", "effect": "therefore"}
KEYS = {
    "premise": text,
    "choice1": text,
    "choice2": text,
    "question": one_of(*CONNECTIVES),
    "label": one_of(0, 1),
}


def evaluate(
    model: LanguageModel,
    tokenizer: TextTokenizer,
    data: Path,
    *,
    batch_size: int,
    report: Callable[[int, int], None],
) -> dict[str, Any]:
    """Return the accuracy on ``data``, a file of JSON lines with SuperGLUE's keys."""
    rows = read_rows(data, KEYS)
    pairs = [
        tokenizer.pair(context(row), f" {row[choice][0].lower()}{row[choice][1:]}")
        for row in rows
        for choice in ("choice1", "choice2")
    ]
    scores = score(model, pairs, batch_size=batch_size, report=report)
    taken = [
        int(second.log_probability > first.log_probability)
        for first, second in zip(scores[::2], scores[1::2], strict=True)
    ]
    return {
        "examples": len(rows),
        "accuracy": sum(choice == row["label"] for choice, row in zip(taken, rows, strict=True)) / len(rows),
        "truncated": sum(one.truncated for one in scores),
        "protocol": PROTOCOL,
    }


def context(row: dict[str, Any]) -> str:
    """Return the premise and its connective, without the full stop between them."""
    return f"{row['premise'].strip()[:-1]} {CONNECTIVES[row['question']]}"
