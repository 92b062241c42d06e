"""Samples of documents for GLM: sample n is drawn by a generator seeded with n alone.

Source: THUDM/GLM@4f61ed72 data_utils/datasets.py (split_ds, BlockDataset) and configure_data.py (get_split); the random
draws and their order are the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ascend_adapt.config.train_config import BlankInfilling
from ascend_adapt.data import IndexedDataset

Ids = NDArray[np.int64]
_SPLIT_SEED = 1234


def split_documents(count: int, split: str, *, own_valid: bool, own_test: bool) -> list[Ids | None]:
    """Return the document numbers of train, valid and test; None for a part without a share.

    A part that has its own data (``own_valid``, ``own_test``) has no share.
    """
    shares = [float(word) for word in split.replace("/", ",").split(",")]
    if sum(shares) < 1.0:
        shares.append(1 - sum(shares))
    shares = [*shares, 0.0, 0.0][:3]
    if own_valid:
        shares[1] = 0.0
    if own_test:
        shares[2] = 0.0
    numbers = np.arange(count)
    if max(shares) == sum(shares):
        return [numbers, None, None]
    np.random.RandomState(_SPLIT_SEED).shuffle(numbers)
    parts: list[Ids | None] = []
    start, residue = 0, 0.0
    for share in np.array(shares) / sum(shares):
        proportion = count * share
        if share == 0:
            parts.append(None)
            continue
        residue += proportion % 1
        size = int(int(proportion) + residue)
        chosen = numbers[start : start + max(size, 1)]
        parts.append(chosen if len(chosen) else None)
        start += size
        residue %= 1
    return parts


class Documents:
    """Concatenation of the documents in several token files."""

    def __init__(self, prefixes: Sequence[Path]) -> None:
        self._files = [IndexedDataset(prefix) for prefix in prefixes]
        self._ends = np.cumsum([len(file) for file in self._files])
        self.sizes = np.concatenate([np.asarray(file.sizes, np.int64) for file in self._files])

    def __getitem__(self, number: int) -> Ids:
        place = int(np.searchsorted(self._ends, number, "right"))
        start = int(self._ends[place - 1]) if place else 0
        return np.asarray(self._files[place][number - start], np.int64)


class DocumentSamples:
    """Samples of up to ``length`` tokens: [CLS] and part of a document, or [CLS] and one or more documents."""

    def __init__(
        self,
        documents: Documents,
        numbers: Ids,
        length: int,
        settings: BlankInfilling,
        *,
        start: int,
        end: int,
        sentence_ends: frozenset[int],
        is_used: Callable[[Ids], bool] | None = None,
    ) -> None:
        """``start`` and ``end`` are the ids of [CLS] and of the end of a document; ``is_used`` filters documents."""
        self.documents, self.numbers, self.length, self.settings = documents, numbers, length, settings
        self._start, self._end, self._sentence_ends, self._is_used = start, end, sentence_ends, is_used
        self._until = np.cumsum(documents.sizes[numbers])
        self.total = int(self._until[-1])
        """Number of tokens, not counting the end-of-document tokens."""

    def __getitem__(self, number: int) -> tuple[Ids, Ids]:
        """Return tokens and loss mask of a sample, both int64 [length or less]; they may be empty."""
        seeds = random.Random(number)
        dice = np.random.RandomState(seed=[seeds.randint(0, 2**32 - 1) for _ in range(16)])
        tokens = self._document(dice)
        surplus = len(tokens) - self.length + 1
        if surplus > 0:
            return self._piece(tokens, surplus, dice)
        tokens, mask = self._begun(tokens)
        while not self.settings.sample_one_document and len(tokens) < self.length:
            room = self.length - len(tokens)
            more, more_mask = self._begun(self._document(dice))
            is_last = len(more) >= room
            more, more_mask = self._stripped(more, more_mask, room)
            tokens, mask = np.concatenate([tokens, more]), np.concatenate([mask, more_mask])
            if is_last:
                break
        return tokens, mask

    def _document(self, dice: np.random.RandomState) -> Ids:
        """Return a document, drawn in proportion to its length."""
        while True:
            place = int(np.searchsorted(self._until, dice.randint(self.total), "right"))
            tokens = np.append(self.documents[int(self.numbers[place])], self._end)
            if self._is_used is None or self._is_used(tokens):
                return tokens

    def _begun(self, tokens: Ids) -> tuple[Ids, Ids]:
        mask = np.ones(len(tokens) + 1, np.int64)
        mask[0] = 0
        return np.concatenate([[self._start], tokens]), mask

    def _piece(self, tokens: Ids, surplus: int, dice: np.random.RandomState) -> tuple[Ids, Ids]:
        """Return a part of a long document, starting at the beginning of a sentence if one is nearby."""
        skipped = dice.randint(surplus)
        if dice.random_sample() > self.settings.non_sentence_start:
            step = -1 if dice.random_sample() < 0.5 else 1
            for _ in range(self.length // 2):
                if (skipped <= 0 and step < 0) or (skipped >= len(tokens) and step > 0):
                    break
                if self._ends(tokens[skipped - 1]):
                    break
                skipped += step
        piece, mask = self._begun(tokens[skipped:])
        if len(piece) == 2 and piece[1] == self._end:
            return piece[:0], mask[:0]
        return self._stripped(piece, mask, self.length)

    def _stripped(self, tokens: Ids, mask: Ids, length: int) -> tuple[Ids, Ids]:
        """Truncate to ``length`` tokens, or to the last end of a sentence if it is in their second half."""
        surplus = len(tokens) - length
        if surplus <= 0:
            return tokens, mask
        while surplus < len(tokens) - 1 and not self._ends(tokens[-surplus - 1]):
            surplus += 1
        if len(tokens) - surplus < length // 2:
            surplus = len(tokens) - length
        return tokens[:-surplus], mask[:-surplus]

    def _ends(self, token: int) -> bool:
        return int(token) in self._sentence_ends
