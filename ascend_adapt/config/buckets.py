"""Buckets of parameters: one copy or collective per bucket takes less host time than one per parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

BUCKET = 2**26
"""Maximum number of elements in a bucket, unless a single parameter is larger. It fits five blocks of GPT-2 345M."""


def in_buckets(things: Iterable[T], numbers: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield ``things`` in order, in lists of at most BUCKET elements, or with a single larger thing.

    ``numbers`` returns the number of elements of a thing.
    """
    bucket: list[T] = []
    count = 0
    for thing in things:
        if bucket and count + numbers(thing) > BUCKET:
            yield bucket
            bucket, count = [], 0
        bucket.append(thing)
        count += numbers(thing)
    if bucket:
        yield bucket
