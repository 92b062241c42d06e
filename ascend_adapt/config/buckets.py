"""Buckets of parameters: one copy or collective for many parameters saves host time and uses the bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

BUCKET = 2**26
"""Maximum elements of a bucket, unless a single parameter is larger: five blocks of GPT-2 345M, one of 1.3B."""


def in_buckets(things: Iterable[T], numbers: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield ``things`` in order, in lists of at most BUCKET elements, or of a single larger thing.

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
