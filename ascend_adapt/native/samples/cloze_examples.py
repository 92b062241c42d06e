"""Examples of SuperGLUE's tasks, read from their .jsonl files.

Source of keys, labels and of COPA's mirrored examples: THUDM/GLM@4f61ed72 tasks/superglue/dataset.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_adapt import regular_files
from ascend_adapt.config.train_config import Cloze
from ascend_adapt.data.glm_tokenizer import plain_punctuation
from ascend_adapt.errors import DataError

FILES = {"train": "train.jsonl", "valid": "val.jsonl", "test": "test.jsonl"}
QUESTIONS = ("cause", "effect")
_SHOWN = 10


@dataclass(frozen=True)
class Example:
    """One example: ``number`` is its idx in the file, ``label`` the index of its answer (None if unknown)."""

    number: Any
    texts: Mapping[str, str]
    label: int | None


@dataclass(frozen=True)
class Format:
    """The texts of a task's examples and its labels, in the order of the answers."""

    texts: tuple[str, ...]
    labels: tuple[Any, ...]
    cleaned: Callable[[str], str] = plain_punctuation


FORMATS = {
    "boolq": Format(("passage", "question"), (False, True)),
    "cb": Format(("premise", "hypothesis"), ("entailment", "contradiction", "neutral")),
    "copa": Format(("premise", "choice1", "choice2", "question"), (0, 1), cleaned=str),
    "rte": Format(("premise", "hypothesis"), ("entailment", "not_entailment")),
}


def read_examples(cloze: Cloze, part: str) -> list[Example]:
    """Return the examples of train, valid or test; test examples may have no label.

    Raises:
        DataError: the file is missing or has invalid lines; the message names the file and the lines.
    """
    path = Path(cloze.folder, FILES[part])
    try:
        lines = regular_files.read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise DataError(f"{path}: {why}, expected the examples of {cloze.task} — correct --data-dir") from error
    form = FORMATS[cloze.task]
    examples, problems = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found = _example(line, form, has_label=part != "test")
        if isinstance(found, Example):
            examples.append(found)
        else:
            problems.append(f"{path}:{number}: {found}")
    if problems:
        more = f"\n{len(problems) - _SHOWN} more lines are invalid" if len(problems) > _SHOWN else ""
        raise DataError("\n".join(problems[:_SHOWN]) + more)
    if not examples:
        raise DataError(f"{path}: has no example, expected those of {cloze.task} — correct --data-dir")
    if cloze.task == "copa" and part == "train":
        examples += [_mirrored(one) for one in examples]
    return examples


def check_examples(cloze: Cloze) -> None:
    """Check the examples that a run reads; raises the errors of ``read_examples``."""
    read_examples(cloze, "train")
    if cloze.validates or cloze.tests_validation_set:
        read_examples(cloze, "valid")
    if Path(cloze.folder, FILES["test"]).exists():
        read_examples(cloze, "test")


def _example(line: str, form: Format, *, has_label: bool) -> Example | str:
    """Return the example of a line, or a description of its problem."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"is not JSON ({error}) — fix the line"
    if not isinstance(row, dict):
        return f"is a JSON {type(row).__name__}, expected an object — fix the line"
    needed = (*form.texts, "idx", *(("label",) if has_label else ()))
    if missing := [name for name in needed if name not in row]:
        return f"has no {', '.join(missing)}, expected {', '.join(needed)} — add what is missing"
    if wrong := [name for name in form.texts if not isinstance(row[name], str) or not row[name].strip()]:
        return f"{wrong[0]} is {row[wrong[0]]!r}, expected a text — fix the line"
    if "choice1" in form.texts and row["question"] not in QUESTIONS:
        return f"question is {row['question']!r}, expected {' or '.join(QUESTIONS)} — fix the line"
    label = _label(row.get("label"), form)
    if "label" in row and row["label"] is not None and label is None:
        return f"label is {row['label']!r}, expected one of {', '.join(map(repr, form.labels))} — fix the line"
    if label is None and has_label:
        return f"label is null, expected one of {', '.join(map(repr, form.labels))} — fix the line"
    return Example(row["idx"], {name: form.cleaned(row[name]) for name in form.texts}, label)


def _label(value: Any, form: Format) -> int | None:
    """Return the index of a label. BoolQ's labels may be text, and True is not COPA's 1."""
    if form.labels == (False, True) and isinstance(value, str):
        value = {"false": False, "true": True}.get(value.lower())
    found = [place for place, label in enumerate(form.labels) if type(label) is type(value) and label == value]
    return found[0] if found else None


def _mirrored(example: Example) -> Example:
    """Return COPA's example with its choices swapped."""
    texts = {**example.texts, "choice1": example.texts["choice2"], "choice2": example.texts["choice1"]}
    return Example(f"{example.number}m", texts, None if example.label is None else 1 - example.label)
