"""Whole numbers in environment variables, file names and text: the digits 0 to 9, at most 18 of them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ascend_adapt.errors import SettingsError

_DIGITS = re.compile(r"[0-9]{1,18}")


def whole_number(text: str | None) -> int | None:
    """Return the text as a whole number, or None if it is not one.

    ``str.isdigit`` and ``str.isdecimal`` also accept digits that int() rejects, such as ``²``, and any number of them.
    """
    stripped = (text or "").strip()
    return int(stripped) if _DIGITS.fullmatch(stripped) else None


def of_variable(environ: Mapping[str, str], name: str, default: int) -> int:
    """Return the whole number in an environment variable; ``default`` if it is unset or empty.

    Raises:
        SettingsError: its value is something else.
    """
    text = environ.get(name, "").strip()
    number = whole_number(text) if text else default
    if number is None:
        raise SettingsError(f"{name}={environ[name]!r}: expected a whole number — correct it or unset it")
    return number
