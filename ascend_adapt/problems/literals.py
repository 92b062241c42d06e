"""Literals that a pattern requires. Searching for them first keeps patterns fast on logs of many megabytes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

try:
    from re import _parser as sre  # type: ignore[attr-defined]
except ImportError:  # the module's name in Python 3.10
    import sre_parse as sre

_SHORTEST = 4
_BEFORE, _AFTER = 60, 60


@functools.cache
def required(pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Return literals of which every match contains at least one, or () if none are known."""
    if pattern.flags & re.IGNORECASE:
        return ()
    return tuple(_of(sre.parse(pattern.pattern, pattern.flags)))


def _of(sequence: Iterable[Any]) -> list[str]:
    """Return the most selective alternatives in a sequence, those whose shortest literal is longest."""
    candidates: list[list[str]] = []
    run = ""
    for operator, argument in sequence:
        name = str(operator)
        if name == "LITERAL":
            run += chr(argument)
            continue
        candidates.append([run])
        run = ""
        if name == "SUBPATTERN":
            candidates.append(_of(argument[-1]))
        elif name == "BRANCH":
            branches = [_of(one) for one in argument[1]]
            candidates.append([text for one in branches for text in one] if all(branches) else [])
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] > 0:
            candidates.append(_of(argument[2]))
    candidates.append([run])
    usable = [one for one in candidates if one and all(len(text) >= _SHORTEST for text in one)]
    return max(usable, key=lambda one: min(map(len, one)), default=[])


def matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern, searching only within 60 lines of its literals."""
    literals = required(pattern)
    if not literals:
        yield from pattern.finditer(text)
        return
    done = 0
    for start in sorted(place for literal in literals for place in _places(text, literal)):
        if start < done:
            continue
        first, last = _lines_before(text, start), _lines_after(text, start)
        yield from pattern.finditer(text, max(first, done), last)
        done = last


def _places(text: str, literal: str) -> Iterator[int]:
    place = text.find(literal)
    while place >= 0:
        yield place
        place = text.find(literal, place + len(literal))


def _lines_before(text: str, place: int) -> int:
    for _ in range(_BEFORE):
        place = text.rfind("\n", 0, place)
        if place < 0:
            return 0
    return place + 1


def _lines_after(text: str, place: int) -> int:
    for _ in range(_AFTER):
        place = text.find("\n", place + 1)
        if place < 0:
            return len(text)
    return place
