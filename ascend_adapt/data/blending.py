"""Blended datasets: which of several datasets the k-th sample comes from.

Sources: Megatron-LM@v2.5 megatron/data/{helpers.cpp,dataset_utils.py,blendable_dataset.py}, Megatron-LM@core_v0.9.0
megatron/core/datasets/helpers.cpp.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascend_adapt.data.indexed_dataset import IndexedDataset
from ascend_adapt.errors import SettingsError

# Number of products of a weight and a position at a time: few enough to stay in the processor's cache.
PRODUCTS_AT_ONCE = 1 << 16


def parse_blend(words: Sequence[str]) -> tuple[list[float], list[str]]:
    """Return the weights and prefixes in "weight prefix weight prefix ...", or weight 1 for a single prefix.

    Raises:
        SettingsError: the arguments have another form.
    """
    if len(words) == 1:
        return [1.0], [words[0]]
    try:
        weights = [float(word) for word in words[::2]]
    except ValueError:
        weights = []
    if len(words) % 2 or not weights or min(weights) < 0 or not 0 < sum(weights) < math.inf:
        raise SettingsError(
            f"--data-path: {' '.join(words)!r}, expected one prefix, or a weight before each prefix — such as "
            "0.3 wiki 0.7 web"
        )
    return weights, [word.strip() for word in words[1::2]]


def normalised(weights: Sequence[float], *, one_by_one: bool) -> list[float]:
    """Return weights that sum to 1. The sum is computed one by one, or pairwise as in numpy; the last bit differs."""
    total = functools.reduce(operator.add, weights, 0.0) if one_by_one else np.sum(np.array(weights, np.float64))
    return [float(weight / total) for weight in weights]


def weights_by_documents(prefixes: Sequence[str], alpha: float = 1.0) -> list[float]:
    """Return a weight for each token file from its number of documents, as in GPT-NeoX's weight_by_num_documents.

    ``alpha`` is its weighted_sampler_alpha: the closer to 0, the less the document counts matter. If p is a file's
    share of all documents, the weights are p ** alpha, normalised, multiplied by 1 - p, and normalised again.
    Source: gpt-neox@ea7aefd8 megatron/data/data_utils.py weights_by_num_docs.

    Raises:
        DataError: token files cannot be read.
        SettingsError: the token files contain no documents.
    """
    return document_weights([len(IndexedDataset(prefix)) for prefix in prefixes], alpha)


def document_weights(counts: Sequence[int], alpha: float) -> list[float]:
    """Return the weights for given numbers of documents, as ``weights_by_documents`` does for token files."""
    if len(counts) == 1:
        return [1.0]
    total = sum(counts)
    if not total:
        raise SettingsError("weights: no documents in any of the token files, expected some — check the prefixes")
    shares = [count / total for count in counts]
    boosted = [share**alpha for share in shares]
    whole = sum(boosted)
    weights = [part / whole * (1 - share) for part, share in zip(boosted, shares, strict=True)]
    if not (whole := sum(weights)):
        raise SettingsError(
            "weights: all documents are in one token file, expected them in two or more — leave the empty files out"
        )
    return [weight / whole for weight in weights]


def samples_to_ask_for(num_samples: int, weight: float) -> int:
    """Return how many samples a blend requests from a dataset with this normalised ``weight``: its share plus 0.5 %."""
    return math.ceil(num_samples * weight * 1.005)


def blend_order(
    weights: Sequence[float], size: int, report: Callable[[int], None] = lambda samples: None
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the dataset of each of ``size`` samples, int16 [size], and the sample's number in it, int64 [size].

    Each sample comes from the dataset that is furthest behind its weight, in a tie from the first such dataset. The
    arithmetic is that of Megatron's helpers in double precision. ``report`` is called regularly with the number of
    samples so far.
    """
    return _greedy(weights, size, np.full(len(weights), math.inf), report)


def exhaustive_blend_order(sizes: Sequence[int]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the order of a blend that takes exactly ``sizes`` samples from the datasets, always in proportion."""
    total = sum(sizes)
    return _greedy([size / float(total) for size in sizes], total, np.array(sizes, np.float64), lambda samples: None)


def _greedy(
    weights: Sequence[float], size: int, limits: NDArray[np.float64], report: Callable[[int], None]
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    datasets = np.empty(size, np.int16)
    numbers = np.empty(size, np.int64)
    # An exhausted dataset counts as taken infinitely often. With an empty dataset, the helpers would loop forever.
    taken = np.where(limits == 0, math.inf, 0.0)
    lags = np.empty(len(weights))
    limited = bool(np.isfinite(limits).any())
    step = max(1, PRODUCTS_AT_ONCE // len(weights))
    for first in range(0, size, step):
        before = taken.copy()
        positions = np.maximum(np.arange(first, min(first + step, size), dtype=np.float64), 1.0)
        chosen = []
        # Each choice depends on the previous one, so only the products can be computed for many samples at once.
        for due in positions[:, None] * np.asarray(weights, np.float64):
            np.subtract(due, taken, lags)
            dataset = lags.argmax()
            chosen.append(dataset)
            taken[dataset] += 1.0
            if limited and taken[dataset] == limits[dataset]:
                taken[dataset] = math.inf
        part = datasets[first : first + step]
        part[:] = chosen
        by_dataset = np.argsort(part, kind="stable")
        counts = np.bincount(part, minlength=len(weights))
        firsts = before - (np.cumsum(counts) - counts)
        numbers[first : first + step][by_dataset] = np.arange(len(part)) + np.repeat(firsts, counts)
        report(first + len(part))
    return datasets, numbers


def fill_blend(dataset_index: NDArray[Any], dataset_sample_index: NDArray[Any], weights: Any, size: int) -> None:
    """Write the result of blend_order into the caller's arrays, as Megatron's helpers do."""
    dataset_index[:size], dataset_sample_index[:size] = blend_order([float(weight) for weight in weights], size)
