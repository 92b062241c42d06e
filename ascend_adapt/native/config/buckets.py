"""Parameters in runs: what each costs the host is then paid once for many, and a fast link is kept busy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

BUCKET = 2**26
"""Numbers of a bucket, at most, if it is not one thing that has more: five blocks of GPT-2 345M, one of 1.3B."""


def in_buckets(things: Iterable[T], numbers: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield things in their order, cut into runs of at most BUCKET ``numbers``, or of one."""
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
