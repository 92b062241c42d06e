"""Enum members in pickles of Python 3.11.0 to 3.11.3, which Debian 12 has: a pickle of those calls ``getattr``."""

from __future__ import annotations

import pickle
from enum import Enum

GETATTR = "builtins.getattr"


def member(enum: object, name: object) -> Enum:
    """Return the member ``name`` of an enum; reading a pickle calls this function instead of ``getattr``.

    Raises:
        UnpicklingError: ``enum`` is not an enum, or has no such member. ``getattr`` of another object can run code.
    """
    if isinstance(enum, type) and issubclass(enum, Enum) and name in enum.__members__:
        return enum[str(name)]
    raise pickle.UnpicklingError(f"{GETATTR} of {enum!r:.80}, which can run code, expected a member of an enum")
