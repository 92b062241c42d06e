"""Vocabulary of a tokenizer, read from its files without a tokenizer library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_adapt import regular_files
from ascend_adapt.errors import ConfigError

_END_OF_DOCUMENT = "<|endoftext|>"


@dataclass(frozen=True)
class Vocabulary:
    """Number of ids of a tokenizer, and its end-of-document id (None if unknown)."""

    size: int
    end_of_document: int | None


# GPT-NeoX gives it 512 ids. Source: gpt-neox@9610391a megatron/tokenizer/tokenizer.py.
_WITHOUT_FILE = {"CharLevelTokenizer": Vocabulary(512, 0)}


def read_vocabulary(tokenizer_type: str, path: str | None, stated: int | None) -> Vocabulary:
    """Return the vocabulary of ``path``: GPT-2's vocab.json, or a tokenizer.json (or a folder with one).

    With a stated size (--vocab-size), and for CharLevelTokenizer, no file is needed.

    Raises:
        ConfigError: neither a file nor a size is given, or the format of the file is unknown.
    """
    without_file = _WITHOUT_FILE.get(tokenizer_type)
    if stated is not None:
        if stated < 1:
            raise ConfigError(f"vocab_size: {stated}, expected at least 1 — correct it")
        is_there = path is not None and Path(path).exists()
        known = without_file or (_read(tokenizer_type, path) if path is not None and is_there else None)
        return Vocabulary(stated, known.end_of_document if known else None)
    if without_file is not None:
        return without_file
    if path is None:
        raise ConfigError(f"{tokenizer_type}: no vocabulary file is given — pass it, or --vocab-size")
    return _read(tokenizer_type, path)


def _read(tokenizer_type: str, path: str) -> Vocabulary:
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    try:
        content = json.loads(regular_files.read_text(file))
        ids = _ids(content)
    except OSError as error:
        raise ConfigError(f"vocabulary file {path!r}: {error.strerror} — correct it, or pass --vocab-size") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"vocabulary file {path!r} of {tokenizer_type}: is neither a vocab.json nor a tokenizer.json — pass "
            "its size with --vocab-size"
        ) from error
    return Vocabulary(len(set(ids.values())), ids.get(_END_OF_DOCUMENT))


def _ids(content: dict[str, Any]) -> dict[str, int]:
    if "model" not in content or not isinstance(content["model"], dict):
        return {str(token): int(number) for token, number in content.items()}
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, list):  # A unigram model has pairs of token and score, ordered by id.
        vocabulary = {pair[0]: number for number, pair in enumerate(vocabulary)}
    added = {one["content"]: int(one["id"]) for one in content.get("added_tokens", ())}
    return {**vocabulary, **added}
