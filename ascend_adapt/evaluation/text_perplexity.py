"""Perplexity of documents per token, byte and word, with overlapping windows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ascend_adapt import regular_files
from ascend_adapt.data.json_lines import read_rows, text
from ascend_adapt.errors import DataError, SettingsError
from ascend_adapt.evaluation.language_model import LanguageModel
from ascend_adapt.evaluation.scoring import Tokens, perplexity, score
from ascend_adapt.evaluation.text import TextTokenizer


def evaluate(
    model: LanguageModel,
    tokenizer: TextTokenizer,
    data: Path,
    *,
    batch_size: int,
    report: Callable[[int, int], None],
    stride: int | None = None,
    key: str = "text",
) -> dict[str, Any]:
    """Return the perplexities of ``data``: a .txt file with one document, or JSON lines, each with one under ``key``.

    ``stride`` is the number of tokens that each window after the first predicts; by default, the length of the context.

    Raises:
        SettingsError: the stride exceeds the model's context.
    """
    step = model.max_positions if stride is None else stride
    if not 1 <= step <= model.max_positions:
        raise SettingsError(
            f"--stride: {stride}, expected 1 to the model's context of {model.max_positions} — correct it"
        )
    documents = _documents(data, key)
    tokens = [tokenizer.encode(document) for document in documents]
    pieces = [piece for one in tokens for piece in windows(one, tokenizer.first(), model.max_positions, step)]
    total = sum(one.log_probability for one in score(model, pieces, batch_size=batch_size, report=report))
    counts = {
        "tokens": sum(map(len, tokens)),
        "bytes": sum(len(document.encode()) for document in documents),
        "words": sum(len(re.split(r"\s+", document)) for document in documents),
    }
    return {
        "documents": len(documents),
        **counts,
        "loss": -total / counts["tokens"],
        **{f"{unit.removesuffix('s')}_perplexity": perplexity(total / count) for unit, count in counts.items()},
        "stride": step,
        "protocol": (
            f"every token of each document is predicted once, the first after the end-of-document token, by windows "
            f"of {model.max_positions} tokens of which each predicts {step}; words are separated by white space"
        ),
    }


def windows(tokens: Tokens, first: int, size: int, stride: int) -> Iterator[tuple[Tokens, Tokens]]:
    """Yield pairs of context and continuation with at most ``size`` inputs, which together predict every token once.

    The context of the first window is ``first``; every later window has as much context as fits.
    """
    whole: Sequence[int] = [first, *tokens]
    done = 0
    while done < len(tokens):
        count = min(stride if done else size, len(tokens) - done)
        end = done + count
        yield whole[max(0, end - size) : done + 1], whole[done + 1 : end + 1]
        done = end


def _documents(data: Path, key: str) -> list[str]:
    if data.suffix != ".txt":
        return [row[key] for row in read_rows(data, {key: text})]
    try:
        document = regular_files.read_text(data, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"{data}: cannot be read ({error}), expected UTF-8 text — correct --data") from error
    if not document.strip():
        raise DataError(f"{data}: has no text, expected a document — correct --data")
    return [document]
