"""Declared shapes of JSON values. A value is checked when it is read, and every fault is reported with its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Shape = Callable[[Any, str], Iterator[str]]
"""Yields "place: value is not ..." for each fault of the value at a place."""
_NONE: Mapping[str, Shape] = {}


def is_a(expected: str, is_valid: Callable[[Any], bool]) -> Shape:
    """Return the shape of values that meet a condition."""

    def faults(value: Any, place: str) -> Iterator[str]:
        if not is_valid(value):
            yield f"{place.lstrip('.')}: {shown(value)} is not {expected}".removeprefix(": ")

    return faults


def of_types(expected: str, *types: type) -> Shape:
    """Return the shape of values of some types; a bool is not an int here."""
    return is_a(expected, lambda value: isinstance(value, types) and (bool in types or not isinstance(value, bool)))


def list_of(each: Shape) -> Shape:
    """Return the shape of lists."""

    def faults(value: Any, place: str) -> Iterator[str]:
        yield from _LIST(value, place)
        for index, one in enumerate(value if isinstance(value, list) else ()):
            yield from each(one, f"{place}[{index}]")

    return faults


def map_of(each: Shape) -> Shape:
    """Return the shape of objects with any names."""

    def faults(value: Any, place: str) -> Iterator[str]:
        yield from _OBJECT(value, place)
        for name, one in value.items() if isinstance(value, dict) else ():
            yield from each(one, f"{place}.{name}")

    return faults


def record(required: Mapping[str, Shape], optional: Mapping[str, Shape] = _NONE) -> Shape:
    """Return the shape of objects with these members; others are not checked."""

    def faults(value: Any, place: str) -> Iterator[str]:
        yield from _OBJECT(value, place)
        if isinstance(value, dict):
            if missing := [name for name in required if name not in value]:
                yield f"{place.lstrip('.')}: has no {', '.join(missing)}".removeprefix(": ")
            for name, shape in (*required.items(), *optional.items()):
                if name in value:
                    yield from shape(value[name], f"{place}.{name}")

    return faults


def shown(value: Any) -> str:
    """Return the beginning of a value as JSON."""
    text = json.dumps(value) if not isinstance(value, int) or abs(value) < 1 << 64 else "a number above 64 bits"
    return text if len(text) <= 40 else f"{text[:37]}..."


_LIST, _OBJECT = of_types("a list", list), of_types("an object", dict)
STRING = of_types("a string", str)
