"""LAMBADA (arXiv 1606.06031): predict the last word of a passage; every token of the word must be correct."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ascend_adapt.data.json_lines import read_rows, text
from ascend_adapt.evaluation.language_model import LanguageModel
from ascend_adapt.evaluation.scoring import perplexity, score
from ascend_adapt.evaluation.text import TextTokenizer

PROTOCOL = (
    "the last word of each passage, after the last space, is scored with the space before it; it counts as "
    "correct if greedy decoding produces all of its tokens; perplexity is per word"
)
# The original text is tokenized and in lower case; OpenAI's text, which GPT-2 was evaluated on, is detokenized.
_TOKENIZED = (" .", " ,", "``", "''", " n't", " 's")


def evaluate(
    model: LanguageModel,
    tokenizer: TextTokenizer,
    data: Path,
    *,
    batch_size: int,
    report: Callable[[int, int], None],
) -> dict[str, Any]:
    """Return accuracy and perplexity of the last words in ``data``, a file of JSON lines with "text"."""
    passages = [row["text"].strip() for row in read_rows(data, {"text": _passage})]
    pairs = [tokenizer.pair(*split(passage)) for passage in passages]
    scores = score(model, pairs, batch_size=batch_size, report=report)
    mean = sum(one.log_probability for one in scores) / len(scores)
    return {
        "examples": len(scores),
        "accuracy": sum(one.is_greedy for one in scores) / len(scores),
        "perplexity": perplexity(mean),
        "text": kind_of_text(passages),
        "truncated": sum(one.truncated for one in scores),
        "protocol": PROTOCOL,
    }


def split(passage: str) -> tuple[str, str]:
    """Return the context and the last word with the space before it."""
    context, _, word = passage.rpartition(" ")
    return context, f" {word}"


def kind_of_text(passages: list[str]) -> str:
    """Return which of the two published versions of the text the passages resemble."""
    tokenized = sum(any(mark in passage for mark in _TOKENIZED) for passage in passages)
    if 2 * tokenized > len(passages):
        return "original: tokenized, as in the paper"
    return "detokenized, as OpenAI published it"


def _passage(value: Any) -> str:
    return text(value) or ("" if " " in value.strip() else "at least two words")
