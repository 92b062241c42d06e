"""Covering arrays: few cases in which every pair of settings occurs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

Case = tuple[Any, ...]
EVERY_CASE = os.environ.get("ASCEND_ADAPT_EVERY_CASE") == "1"
"""Set by ``make numerics`` and ``make conformance``."""


def every_pair(*parameters: Sequence[Any]) -> list[Case]:
    """Return cases, one value of each parameter, in which every two values of two parameters occur together.

    If EVERY_CASE: the full product.
    """
    product = list(itertools.product(*(range(len(values)) for values in parameters)))
    if not EVERY_CASE:
        product = list(_covering(product))
    return [tuple(values[index] for values, index in zip(parameters, case, strict=True)) for case in product]


def _covering(product: list[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    missing = set().union(*map(_pairs, product))
    while missing:
        case = max(product, key=lambda one: len(_pairs(one) & missing))
        missing -= _pairs(case)
        yield case


def _pairs(case: tuple[int, ...]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    return set(itertools.combinations(enumerate(case), 2))
