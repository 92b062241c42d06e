"""Preflight check of the token files, before any process is started."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ascend_adapt.config.train_config import TrainConfig
from ascend_adapt.data import IndexedDataset
from ascend_adapt.data.sample_order import find_dialect, split_sequences
from ascend_adapt.errors import DataError
from ascend_adapt.native.samples.cloze_examples import check_examples
from ascend_adapt.native.samples.glm_text import check_text, load_vocabulary, text_paths
from ascend_adapt.native.samples.token_files import empty_by_split, prefixes, words_by_part

# Number of token ids checked at the start of each file; checking all would take as long as reading the corpus.
_CHECKED_IDS = 1 << 20


def check_data(config: TrainConfig) -> None:
    """Check that every split that the run reads has a sample, and that its token ids fit the embedding table.

    Raises:
        DataError: token files are missing, a part has no sequence or is shorter than a sample, or an id exceeds the
        table.
    """
    if config.cloze is not None:
        load_vocabulary(config.cloze.vocabulary)
        check_examples(config.cloze)
        return
    if config.data.blanks is not None:
        load_vocabulary(config.data.blanks.vocabulary)
        for path in text_paths(config):
            check_text(path)
        return
    data, parts = config.data, words_by_part(config)
    if data.valid or data.test:
        for part, words in parts.items():
            for prefix in prefixes(words, data):
                tokens = _opened(prefix, config)
                _check_part(config, part, prefix, tokens, range(len(tokens.sizes)))
        return
    left_out = empty_by_split(data)
    for prefix in prefixes(data.train, data):
        tokens = _opened(prefix, config)
        cuts = split_sequences(data.split, len(tokens.sizes), data.order)
        for part, cut, share in zip(("train", "valid", "test"), cuts, _shares(data.split), strict=False):
            if share > 0 and part in parts and part not in left_out:
                _check_part(config, part, prefix, tokens, cut)


def missing_files(config: TrainConfig) -> list[str]:
    """Return the token files of the run that are missing on this host."""
    if config.cloze is not None:
        return [name for name in (config.cloze.folder,) if not Path(name).exists()]
    if config.data.blanks is not None:
        return [name for name in text_paths(config) if not Path(name).exists()]
    named = [prefix for words in words_by_part(config).values() for prefix in prefixes(words, config.data)]
    return [f"{prefix}.bin" for prefix in dict.fromkeys(named) if not Path(f"{prefix}.bin").exists()]


def _check_part(config: TrainConfig, part: str, prefix: str, tokens: IndexedDataset, cut: range) -> None:
    if not len(cut):
        step = "change it" if part == "train" else "change it, or disable evaluation (eval-iters 0)"
        raise DataError(
            f"{prefix}: none of its {len(tokens.sizes)} sequences is in {part} with split {config.data.split}, "
            f"expected at least one — {step}"
        )
    found = int(tokens.sizes[cut.start : cut.stop].sum(dtype=np.int64))
    # GPT-NeoX concatenates as many epochs as a sample needs; Megatron's classes assert at least one sample per epoch.
    repeats = find_dialect(config.data.order).separate_below is None
    least = 2 if repeats else config.data.seq_length + 1
    if found < least:
        raise DataError(
            f"{prefix}: {found} tokens for {part}, expected at least {least} for a sample — "
            "add text, change the split, or shorten the samples"
        )


def _opened(prefix: str, config: TrainConfig) -> IndexedDataset:
    tokens = IndexedDataset(prefix)
    largest, checked = 0, 0
    for number in range(len(tokens.sizes)):
        ids = tokens[number]
        largest = max(largest, int(ids.max(initial=0)))
        checked += len(ids)
        if checked >= _CHECKED_IDS:
            break
    rows = config.model.padded_vocab_size
    if largest >= rows:
        raise DataError(
            f"{prefix}: contains token id {largest}, expected ids below {rows}, the rows of the embedding — pass the "
            "vocabulary that the text was tokenized with"
        )
    return tokens


def _shares(split: str) -> list[float]:
    shares = [float(word) for word in split.replace("/", ",").split(",") if word.strip()]
    return [*shares, 0.0, 0.0][:3]
