"""Environment variables that turn something on or off."""

from __future__ import annotations

from collections.abc import Mapping

from ascend_adapt.errors import SettingsError

_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def is_on(environ: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return whether a switch is on; ``default`` if it is unset or empty.

    Raises:
        SettingsError: its value is neither on nor off.
    """
    text = environ.get(name, "").strip().lower()
    if not text:
        return default
    if text not in _ON and text not in _OFF:
        raise SettingsError(f"{name}={environ[name]!r}: expected 1 or 0 — correct it or unset it")
    return text in _ON
