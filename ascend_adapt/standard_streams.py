"""Makes standard input, output and error usable if they are closed or cannot encode every character."""

from __future__ import annotations

import io
import os
import sys

_STRICT = ("strict", "surrogateescape")


def prepare() -> None:
    """Open closed standard streams on /dev/null, and escape characters that their encoding cannot represent.

    If a descriptor from 0 to 2 stayed closed, the next opened file would get it, and printed output would be written
    into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open(number)
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in _STRICT:
        sys.stdout.reconfigure(errors="backslashreplace")  # the default of standard error


def _open(number: int) -> None:
    """Open /dev/null as a standard descriptor, unless it is open already."""
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number, inheritable=True)
            os.close(null)
        else:
            os.set_inheritable(number, True)
