"""What the parts of a configuration are checked for, in one wording."""

from __future__ import annotations

from collections.abc import Collection

from ascend_adapt.errors import ConfigError


def one_of(name: str, value: object, choices: Collection[object]) -> None:
    """Check that a value is one of the choices."""
    if value not in choices:
        raise ConfigError(
            f"{name}: {value!r}, expected one of {', '.join(map(str, choices))} — choose one the native trainer has"
        )


def at_least(name: str, value: float, least: float) -> None:
    """Check that a number is not too small, and a number."""
    if not value >= least:
        raise ConfigError(f"{name}: {value}, expected at least {least} — correct it")


def divides(name: str, value: int, by_name: str, by: int) -> None:
    """Check that a number is a multiple of another."""
    if value % by:
        raise ConfigError(f"{name}: {value}, expected a multiple of {by_name} {by} — change one of them")
