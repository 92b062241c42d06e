"""Encoders from texts to token ids, one class per library. The result is one flat array of ids and each text's size."""

from __future__ import annotations

import importlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ascend_adapt.data.long_texts import PART_LENGTH, part_function
from ascend_adapt.data.memory import resident_bytes
from ascend_adapt.errors import DataError

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor
    from tiktoken import Encoding
    from tokenizers import Tokenizer

# The reference is up to a hundred times slower, so more checks would cost noticeable time.
CALLS_BETWEEN_CHECKS = 16
CHECKED_LENGTH = 2000

# gigatoken is loaded again after MEMORY_FOR_WORDS bytes of growth, and after at least CHARACTERS_REMEMBERED characters
# of text. Loading costs as much time as encoding 20 MB of text. Its tables grow in steps, and an old table is freed
# only when the new one is filled. Growth is measured after CHARACTERS_TO_SETTLE characters, when memory for texts and
# ids has been allocated and the memory of the last tokenizer freed.
MEMORY_FOR_WORDS = 96 << 20
CHARACTERS_REMEMBERED = 16 << 20
CHARACTERS_TO_SETTLE = 4 << 20

Encoded = tuple[NDArray[Any], NDArray[np.int64]]


class Encoder(Protocol):
    """Encodes N texts into ids [T] and sizes [N], where T is the sum of the sizes."""

    def encode(self, texts: list[str]) -> Encoded:
        """Return the concatenated ids of all texts, and how many each text has."""
        ...


class HFEncoder:
    """Hugging Face's tokenizers, used on small parts of texts: encoding takes 150 times their size in memory."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        # Since tokenizers 0.20, encode_batch_fast gives the same ids without offsets.
        self._encode_batch = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
        self._parts_of = part_function(tokenizer)

    def encode(self, texts: list[str]) -> Encoded:
        """Return the concatenated ids of all texts, and how many each text has."""
        sizes = np.zeros(len(texts), np.int64)
        ids = [np.empty(0, np.uint32)]
        for owners, parts in self._batches(texts):
            tokens, lengths = _joined([encoding.ids for encoding in self._encode_batch(parts)])
            np.add.at(sizes, owners, lengths)
            ids.append(tokens)
        return np.concatenate(ids), sizes

    def _batches(self, texts: list[str]) -> Iterator[tuple[list[int], list[str]]]:
        """Yield batches of parts of about PART_LENGTH characters or more, with the number of each part's text."""
        owners: list[int] = []
        parts: list[str] = []
        length = 0
        for owner, text in enumerate(texts):
            for part in self._parts_of(text):
                owners.append(owner)
                parts.append(part)
                length += len(part)
                if length >= PART_LENGTH:
                    yield owners, parts
                    owners, parts, length = [], [], 0
        if parts:
            yield owners, parts


class GigatokenEncoder:
    """gigatoken. The value of ``threads`` that a process gives first applies to all its encoders.

    Up to version 0.10, gigatoken caches every word without a limit, so it is reloaded when the cache takes too much
    memory.
    """

    def __init__(self, tokenizer: Tokenizer, threads: int):
        os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
        self._load: Callable[[], Any] = partial(importlib.import_module("gigatoken").Tokenizer, tokenizer)
        self._tokenizer = self._load()
        self._looking = threading.Lock()
        self._settled_at: int | None = None
        self._characters = 0

    def encode(self, texts: list[str]) -> Encoded:
        """Return the concatenated ids of all texts, and how many each text has."""
        if not texts:
            return _joined([])
        # Read the arrays of awkward's layout directly, because its functions take longer than encoding a short batch.
        rows = self._tokenizer.encode_batch(texts, parallel=True).layout
        if self._looking.acquire(blocking=False):  # otherwise another thread is doing this
            try:
                self._forget(sum(map(len, texts)))
            finally:
                self._looking.release()
        offsets = rows.offsets.data
        return rows.content.data[offsets[0] : offsets[-1]], np.diff(offsets)

    def _forget(self, characters: int) -> None:
        self._characters += characters
        if self._settled_at is None:
            if self._characters > CHARACTERS_TO_SETTLE:
                self._settled_at = resident_bytes()
        elif self._characters > CHARACTERS_REMEMBERED and resident_bytes() > self._settled_at + MEMORY_FOR_WORDS:
            self._tokenizer = self._load()
            self._characters, self._settled_at = 0, None


class TiktokenEncoder:
    """OpenAI's tiktoken. A special token spelled out in the text raises ValueError, as in GPT-NeoX."""

    def __init__(self, encoding: Encoding):
        self._encoding = encoding

    def encode(self, texts: list[str]) -> Encoded:
        """Return the concatenated ids of all texts, and how many each text has."""
        return _joined([self._encoding.encode_to_numpy(text) for text in texts])


class SentencePieceEncoder:
    """Google's sentencepiece. ``special_tokens`` that are spelled out in the text become those tokens.

    Source: Megatron-LM@core_v0.9.0 megatron/training/tokenizer/tokenizer.py, _SentencePieceTokenizer.tokenize.
    """

    def __init__(self, processor: SentencePieceProcessor, special_tokens: dict[str, int]):
        self._processor = processor
        self._special_tokens = special_tokens
        self._split = re.compile(f"({'|'.join(map(re.escape, special_tokens))})").split if special_tokens else None

    def encode(self, texts: list[str]) -> Encoded:
        """Return the concatenated ids of all texts, and how many each text has."""
        if self._split is None:
            return _joined(self._processor.encode(texts))
        return _joined([list(chain.from_iterable(map(self._piece, self._split(text)))) for text in texts])

    def _piece(self, text: str) -> list[int]:
        if text in self._special_tokens:
            return [self._special_tokens[text]]
        return self._processor.encode(text)  # type: ignore[no-any-return]


class CharLevelEncoder:
    """Character-level encoder: the ids are the bytes of the UTF-8 encoding."""

    def encode(self, texts: list[str]) -> Encoded:
        """Return the concatenated ids of all texts, and how many each text has."""
        packed = [text.encode("utf-8") for text in texts]
        return np.frombuffer(b"".join(packed), np.uint8), np.array([len(text) for text in packed], np.int64)


class CheckedEncoder:
    """A fast engine that is checked while it runs: some of its ids are compared with the reference.

    Raises:
        DataError: the ids differ.
    """

    def __init__(self, encoder: Encoder, reference: Encoder, name: str):
        self._encoder = encoder
        self._reference = reference
        self._name = name
        self._calls = 0

    def encode(self, texts: list[str]) -> Encoded:
        """Return the concatenated ids of all texts, and how many each text has."""
        self._calls += 1
        if texts and self._calls % CALLS_BETWEEN_CHECKS == 0:
            text = texts[self._calls % len(texts)][:CHECKED_LENGTH]
            check_same_ids(self._encoder, self._reference, [text], self._name)
        return self._encoder.encode(texts)


def _joined(rows: list[Any]) -> Encoded:
    sizes = np.array([len(row) for row in rows], dtype=np.int64)
    ids = (
        np.fromiter(chain.from_iterable(rows), np.uint32, int(sizes.sum()))
        if not _arrays(rows)
        else np.concatenate(rows)
    )
    return ids, sizes


def _arrays(rows: list[Any]) -> bool:
    return bool(rows) and isinstance(rows[0], np.ndarray)


def check_same_ids(encoder: Encoder, reference: Encoder, texts: list[str], name: str) -> None:
    """Raise DataError if the encoders give different ids for any text."""
    for text in texts:
        mine, truth = encoder.encode([text])[0], reference.encode([text])[0]
        if not np.array_equal(mine, truth):
            raise DataError(
                f"engine {name}: {mine[:8].tolist()}... for {text[:40]!r}, expected {truth[:8].tolist()}... "
                "as tokenizers gives — use --engine hf"
            )
