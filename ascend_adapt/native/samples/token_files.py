"""Token files of a run and their identities, so that a different file with the same name is detected."""

from __future__ import annotations

import hashlib
import re

import numpy as np

from ascend_adapt.config.train_config import Data, TrainConfig
from ascend_adapt.data import IndexedDataset
from ascend_adapt.data.blending import parse_blend
from ascend_adapt.data.sample_order import find_dialect, split_sequences
from ascend_adapt.native.samples.glm_text import token_prefix


def words_by_part(config: TrainConfig) -> dict[str, tuple[str, ...]]:
    """Return, for each split that is read and has its own token files, prefixes or alternating weights and prefixes."""
    data = config.data
    evaluates = config.eval_interval and config.eval_iterations
    return {"train": data.train, **({"valid": data.valid, "test": data.test} if evaluates else {})}


def prefixes(words: tuple[str, ...], data: Data) -> list[str]:
    """Return the prefixes from a list of prefixes and optional weights."""
    if data.blanks is not None or len(words) < 2 or data.weight_by_documents is not None:
        return list(words)
    return list(parse_blend(words)[1])


def empty_by_split(data: Data) -> tuple[str, ...]:
    """Return which of valid and test have a share in the split but no sequence in any token file.

    Upstream skips evaluation on these parts, except Megatron-core, for which the result is always empty. Source:
    gpt-neox@9610391a and Megatron-LM@v2.5, build_train_valid_test_datasets: None for such a part, and no evaluation.

    Raises:
        DataError: token files cannot be read.
    """
    if data.blanks is not None or data.valid or data.test or find_dialect(data.order).splits_at_bookends:
        return ()
    sequences = [len(IndexedDataset(prefix)) for prefix in prefixes(data.train, data)]
    cuts = [split_sequences(data.split, count, data.order) for count in sequences]
    shares = [*(float(share) for share in re.split("[,/]", data.split)), 0.0, 0.0]
    parts = {"valid": 1, "test": 2}
    return tuple(part for part, place in parts.items() if shares[place] > 0 and not any(cut[place] for cut in cuts))


def identities(config: TrainConfig) -> dict[str, str]:
    """Return the identity of each token file by prefix: its numbers of sequences and tokens, and a digest of the sizes.

    Raises:
        DataError: token files cannot be read.
    """
    if config.cloze is not None:
        return {}
    found = {}
    for words in words_by_part(config).values():
        for prefix in prefixes(words, config.data):
            tokens_at = prefix if config.data.blanks is None else token_prefix(prefix, config.data)
            sizes = np.asarray(IndexedDataset(tokens_at).sizes)
            tokens, digest = int(sizes.sum(dtype=np.int64)), hashlib.sha256(sizes.data).hexdigest()[:12]
            found[prefix] = f"{len(sizes)} sequences of {tokens} tokens (sizes {digest})"
    return found
