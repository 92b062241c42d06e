"""Which token files a run reads, and what each of them is, so that another one of the same name is noticed."""

from __future__ import annotations

import hashlib

import numpy as np

from ascend_adapt.data import IndexedDataset
from ascend_adapt.data.blending import parse_blend
from ascend_adapt.native.config import Data, TrainConfig


def words_by_part(config: TrainConfig) -> dict[str, tuple[str, ...]]:
    """Return the weights and prefixes, or prefixes, of each part that has token files of its own and is read."""
    data = config.data
    evaluates = config.eval_interval and config.eval_iterations
    return {"train": data.train, **({"valid": data.valid, "test": data.test} if evaluates else {})}


def prefixes(words: tuple[str, ...], data: Data) -> list[str]:
    """Return the prefixes among weights and prefixes; their weights may be left to the number of documents."""
    if len(words) < 2 or data.weight_by_documents is not None:
        return list(words)
    return list(parse_blend(words)[1])


def identities(config: TrainConfig) -> dict[str, str]:
    """Return in words, by prefix, what decides the order of a token file's samples: how many and how long they are.

    Raises:
        DataError: token files that cannot be read.
    """
    told = {}
    for words in words_by_part(config).values():
        for prefix in prefixes(words, config.data):
            sizes = np.asarray(IndexedDataset(prefix).sizes)
            tokens, digest = int(sizes.sum(dtype=np.int64)), hashlib.sha256(sizes.data).hexdigest()[:12]
            told[prefix] = f"{len(sizes)} sequences of {tokens} tokens (sizes {digest})"
    return told
