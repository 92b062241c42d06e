"""Scoring: log-probabilities of continuations, in right-padded batches whose padding causal attention never sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ascend_adapt.errors import DataError
from ascend_adapt.evaluation.language_model import LanguageModel

Tokens = Sequence[int]


@dataclass(frozen=True)
class Score:
    """Log-probability of a continuation, and whether greedy decoding would produce all of its tokens."""

    log_probability: float
    is_greedy: bool
    truncated: bool
    """Whether the context was truncated at its start to fit the model."""


def score(
    model: LanguageModel,
    requests: Sequence[tuple[Tokens, Tokens]],
    *,
    batch_size: int = 8,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Score]:
    """Return the scores of (context, continuation) pairs in order; every context must have at least one token.

    A context that is too long for the model is truncated at its start.

    Raises:
        DataError: a continuation is longer than the model's context.
    """
    scores: list[Score | None] = [None] * len(requests)
    by_length = sorted(range(len(requests)), key=lambda number: -sum(map(len, requests[number])))
    for start in range(0, len(by_length), batch_size):
        numbers = by_length[start : start + batch_size]
        for number, one in zip(numbers, _score_batch(model, [requests[number] for number in numbers]), strict=True):
            scores[number] = one
        report(min(start + batch_size, len(by_length)), len(by_length))
    return [one for one in scores if one is not None]


def perplexity(mean_log_probability: float) -> float:
    """Return exp of the negative mean log-probability; infinity on overflow."""
    try:
        return math.exp(-mean_log_probability)
    except OverflowError:
        return math.inf


def _score_batch(model: LanguageModel, batch: Sequence[tuple[Tokens, Tokens]]) -> list[Score]:
    longest = max(len(continuation) for _, continuation in batch)
    if longest > model.max_positions:
        raise DataError(
            f"continuation: {longest} tokens, expected at most the model's context of {model.max_positions} — shorten "
            "the text"
        )
    # The last token is only predicted.
    rows = [[*context, *continuation][-model.max_positions - 1 :] for context, continuation in batch]
    width = max(map(len, rows)) - 1
    tokens = torch.zeros(len(rows), width, dtype=torch.int64)
    for place, row in enumerate(rows):
        tokens[place, : len(row) - 1] = torch.tensor(row[:-1])
    logits = model.local_logits(tokens.to(model.device))
    scores = []
    for place, (row, (context, continuation)) in enumerate(zip(rows, batch, strict=True)):
        end, count = len(row) - 1, len(continuation)
        targets = torch.tensor(row[end + 1 - count :], device=logits.device)
        log_probabilities = model.gathered(logits[place, end - count : end]).log_softmax(-1)
        of_targets = log_probabilities.gather(-1, targets[:, None])
        truncated = len(context) + count > len(row)
        is_greedy = bool((log_probabilities.argmax(-1) == targets).all())
        scores.append(Score(float(of_targets.double().sum()), is_greedy, truncated))
    return scores
