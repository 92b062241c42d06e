"""Sample order: the tokens of the k-th training sample, bit for bit as in Megatron and its forks.

The sequences of a split are concatenated, epoch after epoch, in a shuffled order (document_index). Sample i begins
at token i * seq_length of that stream (sample_index) and ends on the first token of sample i + 1. The samples are then
shuffled (shuffle_index). One numpy RandomState is the only source of randomness.

Sources: Megatron-LM@v2.5 and @23.06 megatron/data/gpt_dataset.py, Megatron-LM@core_v0.9.0
megatron/core/datasets/{gpt_dataset.py,helpers.cpp}, Megatron-DeepSpeed@8387ae17 megatron/data/gpt_dataset.py,
gpt-neox@9610391a megatron/data/gpt2_dataset.py.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ascend_adapt.errors import DataError, SettingsError

# Few enough sequences for their intermediate results to stay in the processor's cache.
SEQUENCES_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Dialect:
    """Sample order of one code base.

    ``separate_below``: the last epoch is shuffled separately if less than this fraction of it is needed; None for
        never.
    ``splits_at_bookends``: boundaries of splits are rounded once, instead of summing rounded lengths.
    ``hides_last_sample``: the last sample is never returned. ``has_options``: validation may end in a partial sample,
        and
    samples need not overlap by a token.
    """

    name: str
    separate_below: float | None
    splits_at_bookends: bool = False
    hides_last_sample: bool = False
    has_options: bool = False


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect("megatron-v2", separate_below=0.80),
        Dialect("bigscience", separate_below=0.95),
        Dialect("mcore", separate_below=0.80, splits_at_bookends=True, has_options=True),
        Dialect("neox", separate_below=None, hides_last_sample=True),
    )
}


def find_dialect(name: str) -> Dialect:
    """Return the sample-order dialect ``name``.

    Raises:
        SettingsError: the dialect is unknown.
    """
    if name not in DIALECTS:
        more = "use the order of your training code"
        if name == "oneflow":
            more = "OneFlow's order is not available: it shuffles with C++'s mt19937, which numpy does not offer"
        raise SettingsError(f"dialect: {name!r}, expected one of {', '.join(DIALECTS)} — {more}")
    return DIALECTS[name]


@dataclass(frozen=True)
class SampleOrder:
    """Sample order: three indices, and the number of epochs E that they span.

    document_index [E * sequences] has the sequences in their order of concatenation. sample_index [N + 1, 2] has each
    sample's index in document_index, and its offset in that sequence in tokens. shuffle_index [N] has the number of the
    k-th sample.
    """

    document_index: NDArray[Any]
    sample_index: NDArray[Any]
    shuffle_index: NDArray[Any]
    epochs: int


def build_sample_order(
    sizes: NDArray[np.int32],
    documents: ArrayLike,
    *,
    seq_length: int,
    num_samples: int | None,
    seed: int,
    dialect: str = "megatron-v2",
    drop_last_partial_sequence: bool = True,
    extra_token: bool = True,
) -> SampleOrder:
    """Return the order of at least ``num_samples`` samples of ``seq_length`` tokens from the sequences ``documents``.

    Args:
        sizes: number of tokens of every sequence of the token files, int32 [S].
        documents: numbers of the sequences, such as np.arange(begin, end) of a split.
        num_samples: number of samples, or None for one epoch.
        extra_token: whether samples have seq_length + 1 tokens, the last of which is the first of the next sample.

    Raises:
        DataError: the sequences have too few tokens.
        SettingsError: the dialect does not have the option.
    """
    rules = find_dialect(dialect)
    if not (rules.has_options or (drop_last_partial_sequence and extra_token)):
        raise SettingsError(f"dialect {dialect}: partial or non-overlapping samples, expected neither — use mcore")
    documents = np.asarray(documents)
    extra = int(extra_token)
    tokens = int(np.sum(sizes.take(documents), dtype=np.int64))
    if seq_length < 1 or tokens <= extra:
        raise DataError(
            f"{len(documents)} sequences: {tokens} tokens for samples of {seq_length}, expected more — "
            "choose a larger split"
        )
    epochs = 1 if num_samples is None else num_epochs(tokens, seq_length, num_samples, extra)
    before_last = _separate_from(rules, epochs, tokens, seq_length, num_samples, extra)
    random = np.random.RandomState(seed)
    document_index = _shuffled_documents(documents, epochs, before_last is not None, random)
    sample_index = build_sample_index(
        sizes,
        document_index,
        seq_length,
        samples_available(epochs, tokens, seq_length, drop_last_partial_sequence, extra),
        extra,
    )
    count = len(sample_index) - 1
    shuffle_index = _shuffled_samples(count if before_last is None else before_last, count, random)
    return SampleOrder(document_index, sample_index, shuffle_index, epochs)


def num_epochs(tokens: int, seq_length: int, num_samples: int, extra: int = 1) -> int:
    """Return the number of epochs of ``tokens`` tokens that ``num_samples`` samples need."""
    return max(1, -(-(num_samples * seq_length + extra) // tokens))


def samples_available(epochs: int, tokens: int, seq_length: int, drop_last_partial: bool = True, extra: int = 1) -> int:
    """Return the number of samples in ``epochs`` epochs of ``tokens`` tokens."""
    total = epochs * tokens - extra
    if drop_last_partial:
        return total // seq_length
    # Megatron-core divides in single precision, which is off by a few samples from 2**24 tokens on.
    return int(np.ceil(np.float32(total) / np.float32(seq_length)))


def index_dtype(places: int, longest: int) -> np.dtype[Any]:
    """Return the dtype of a sample index: int64 if an index or offset needs it, else int32."""
    return np.dtype(np.int32 if max(places, longest) <= np.iinfo(np.int32).max else np.int64)


def build_sample_index(
    sizes: NDArray[Any], document_index: NDArray[Any], seq_length: int, num_samples: int, extra: int = 1
) -> NDArray[Any]:
    """Return the sample index [num_samples + 1, 2]: the index in document_index and the offset of each sample.

    The index is that of the sequence with the sample's first token (``extra`` = 1), or with the last token before it
    (0). The last row is the end of the last sample.
    """
    dtype = index_dtype(len(document_index), int(sizes.max(initial=0)))
    index = np.empty((num_samples + 1, 2), dtype)
    # Number of samples so far, and number of tokens to the beginning of the next one.
    row = ahead = 0
    for first in range(0, len(document_index), SEQUENCES_AT_ONCE):
        laid = sizes.take(document_index[first : first + SEQUENCES_AT_ONCE]).astype(np.uint64)
        begins = np.cumsum(laid)
        tokens = int(begins[-1])
        # Number of samples that begin before the end of each sequence, or at its end for extra = 0.
        begun = ((begins + np.uint64(seq_length - extra - ahead)) // np.uint64(seq_length)).view(np.int64)
        rows = min(int(begun[-1]), num_samples + 1 - row)
        places = np.cumsum(np.bincount(begun, minlength=rows)[:rows])
        begins -= laid
        offsets = np.arange(ahead, ahead + rows * seq_length, seq_length) - begins.view(np.int64).take(places)
        index[row : row + rows, 0] = places
        index[row : row + rows, 0] += first
        index[row : row + rows, 1] = offsets
        row += rows
        ahead += rows * seq_length - tokens
        if row > num_samples:
            break
    # If there are too few tokens, Megatron's helpers stop at the end of the last sequence.
    index[row:] = len(document_index) - 1, int(sizes[document_index[-1]]) - extra
    # The first sample begins with the first sequence, even if that is empty.
    index[0] = 0
    return index


def _separate_from(
    rules: Dialect, epochs: int, tokens: int, seq_length: int, num_samples: int | None, extra: int
) -> int | None:
    """Return the number of samples before the last epoch if that is shuffled separately, else None."""
    if epochs == 1 or num_samples is None or rules.separate_below is None:
        return None
    before = ((epochs - 1) * tokens - extra) // seq_length
    in_one_epoch = (tokens - extra) // seq_length
    return before if num_samples - before < int(rules.separate_below * in_one_epoch) else None


def _shuffled_documents(
    documents: NDArray[Any], epochs: int, separate_last: bool, random: np.random.RandomState
) -> NDArray[Any]:
    dtype = np.int32 if int(documents.max()) <= np.iinfo(np.int32).max else np.int64
    index = np.tile(documents.astype(dtype, copy=False), epochs)
    cut = len(documents) * (epochs - 1) if separate_last else len(index)
    random.shuffle(index[:cut])
    if separate_last:
        random.shuffle(index[cut:])
    return index


def _shuffled_samples(first: int, count: int, random: np.random.RandomState) -> NDArray[Any]:
    index = np.arange(count, dtype=np.uint32 if count < np.iinfo(np.uint32).max - 1 else np.int64)
    random.shuffle(index[:first])
    if first < count:
        random.shuffle(index[first:])
    return index


def split_sequences(split: str, sequences: int, dialect: str = "megatron-v2") -> list[range]:
    """Return the sequences of training, validation and test for a split such as "949,50,1".

    Raises:
        SettingsError: the proportions are invalid.
    """
    rules = find_dialect(dialect)
    try:
        parts = [float(part) for part in re.split("[,/]", split)]
    except ValueError:
        parts = []
    if not parts or min(parts) < 0 or not 0 < sum(parts) < math.inf or len(parts) > 3:
        raise SettingsError(f"--split: {split!r}, expected up to three proportions — such as 949,50,1")
    total = sum(parts)
    shares = [part / total for part in [*parts, 0.0, 0.0][:3]]
    bounds = [0]
    if rules.splits_at_bookends:
        end = 0.0
        for share in shares:
            end += share
            bounds.append(round(end * float(sequences)))
    else:
        for share in shares:
            bounds.append(bounds[-1] + round(share * float(sequences)))
        # Megatron subtracts the total rounding error from every end.
        bounds[1:] = [bound - (bounds[-1] - sequences) for bound in bounds[1:]]
    return [range(max(begin, 0), max(begin, end, 0)) for begin, end in zip(bounds, bounds[1:], strict=False)]
