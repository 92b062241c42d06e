"""Metrics of cloze tasks, from predictions and labels as answer indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def accuracy(predictions: Sequence[int], labels: Sequence[int]) -> float:
    """Return the percentage of correct predictions."""
    right = sum(one == other for one, other in zip(predictions, labels, strict=True))
    return 100.0 * right / len(labels)


def f1_macro(predictions: Sequence[int], labels: Sequence[int]) -> float:
    """Return the mean F1 over the answers, from 0 to 1; an answer that is neither predicted nor a label is excluded."""
    pairs = list(zip(predictions, labels, strict=True))
    scores = []
    for answer in {*predictions, *labels}:
        both = sum(one == other == answer for one, other in pairs)
        scores.append(2 * both / sum((one == answer) + (other == answer) for one, other in pairs))
    return sum(scores) / len(scores)


FUNCTIONS: dict[str, Callable[[Sequence[int], Sequence[int]], float]] = {"accuracy": accuracy, "f1-macro": f1_macro}
