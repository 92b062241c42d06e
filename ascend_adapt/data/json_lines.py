"""Task files: JSON lines whose keys and values are checked. All problems of a file are reported at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ascend_adapt.data.inputs import Input, open_input
from ascend_adapt.errors import DataError, one_line

_SHOWN = 5

Check = Callable[[Any], str]
"""A function that returns "" for a valid value, else what was expected."""


def text(value: Any) -> str:
    """Check that a value is a string, not blank, and valid Unicode. JSON can contain half of a surrogate pair."""
    return "" if isinstance(value, str) and value.strip() and is_unicode(value) else "text"


def is_unicode(value: str) -> bool:
    """Return whether a string has no half of a surrogate pair, which tokenizers reject."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def one_of(*choices: Any) -> Check:
    """Check that a value is one of ``choices`` and has the same type, so that true is not 1."""

    def check(value: Any) -> str:
        fits = any(value == one and type(value) is type(one) for one in choices)
        return "" if fits else f"one of {', '.join(map(repr, choices))}"

    return check


def read_rows(path: Path, checks: Mapping[str, Check], option: str = "--data") -> list[dict[str, Any]]:
    """Return the objects of a plain or compressed JSON lines file, skipping blank lines. Messages name ``option``.

    Raises:
        DataError: the file cannot be read or has no object, or lines lack keys or have invalid values.
    """
    if not path.is_file():
        # Every rank reads the file, so it cannot be a pipe.
        found = "not a regular file" if path.exists() else "no such file"
        raise DataError(f"{path}: {found}, expected JSON lines with {', '.join(checks)} — correct {option}")
    with open_input(Input(str(path))) as (stream, _):
        lines = stream.read().split(b"\n")
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            row, wrong = _checked(line, checks)
            rows.append(row)
            problems += [f"{path}:{number}: {one}" for one in wrong]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise DataError(f"{'; '.join(problems[:_SHOWN])}{more} — fix these lines")
    if not rows:
        raise DataError(f"{path}: has no lines, expected JSON objects with {', '.join(checks)} — correct {option}")
    return rows


def _checked(line: bytes, checks: Mapping[str, Check]) -> tuple[dict[str, Any], list[str]]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return {}, [f"is not JSON ({one_line(error)}), expected an object"]
    if not isinstance(row, dict):
        return {}, [f"is a {type(row).__name__}, expected an object with {', '.join(checks)}"]
    wrong = [f"has no {name!r}" for name in checks if name not in row]
    for name, check in checks.items():
        if name in row and (expected := check(row[name])):
            wrong.append(f"{name} is {str(row[name])[:40]!r}, expected {expected}")
    return row, wrong
