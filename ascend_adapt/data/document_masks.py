"""Attention masks, loss masks and positions of samples that contain several documents.

Source: Megatron-LM@core_v0.9.0 megatron/core/datasets/gpt_dataset.py, _get_ltor_masks_and_position_ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def document_numbers(tokens: NDArray[Any], eod: int) -> NDArray[np.int64]:
    """Return each token's document number, [S]. An end-of-document token belongs to the document that it ends."""
    ended = np.cumsum(tokens == eod, dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), ended[:-1]])[: len(tokens)]


def position_ids(tokens: NDArray[Any], eod: int | None = None) -> NDArray[np.int64]:
    """Return the position of each token, [S], counted from the start of its document if ``eod`` is given."""
    positions = np.arange(len(tokens), dtype=np.int64)
    if eod is None:
        return positions
    starts = np.where(np.diff(document_numbers(tokens, eod), prepend=0) > 0, positions, 0)
    return positions - np.maximum.accumulate(starts)


def masked_out(tokens: NDArray[Any], eod: int | None = None) -> NDArray[np.bool_]:
    """Return the attention mask, bool [S, S]: True where a key is after the query (row), or in another document."""
    later: NDArray[np.bool_] = ~np.tri(len(tokens), dtype=bool)
    if eod is None:
        return later
    numbers = document_numbers(tokens, eod)
    other: NDArray[np.bool_] = numbers[:, None] != numbers
    return later | other


def loss_mask(tokens: NDArray[Any], eod: int | None = None) -> NDArray[np.float32]:
    """Return the loss mask, [S]: 0 where the input is ``eod``, 1 elsewhere. Without ``eod``, all values are 1."""
    return np.ones(len(tokens), np.float32) if eod is None else (tokens != eod).astype(np.float32)
