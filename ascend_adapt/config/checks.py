"""Validation of configuration values, with uniform error messages."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from ascend_adapt.errors import ConfigError

LARGEST = 2**30
"""Maximum size of one dimension of a model; torch can still represent the size of a weight with two such dimensions."""
DEEPEST = 10_000
"""Maximum number of layers; a larger number is a mistake, and listing its parameters would exhaust host memory."""


class Problems:
    """Problems of one configuration: a ``with problems:`` block catches the ConfigError of a check and collects it."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, ConfigError):
            return False
        self.found += str(error).split("\n")
        return True

    def raise_all(self) -> None:
        """Raise all problems as one error, one per line.

        Raises:
            ConfigError: at least one problem was collected.
        """
        if self.found:
            raise ConfigError("\n".join(dict.fromkeys(self.found)))


def one_of(name: str, value: object, choices: Collection[object]) -> None:
    """Check that a value is one of the choices."""
    if value not in choices:
        raise ConfigError(f"{name}: {value!r}, expected one of {', '.join(map(str, choices))} — choose one of these")


def at_least(name: str, value: float, least: float) -> None:
    """Check that a number is finite and at least ``least``."""
    if not least <= value < math.inf:
        raise ConfigError(f"{name}: {value}, expected at least {least} — correct it")


def size(name: str, value: int, most: int = LARGEST) -> None:
    """Check that a number of elements is at least 1 and at most ``most``."""
    if not 1 <= value <= most:
        raise ConfigError(f"{name}: {value}, expected at least 1 and at most {most} — correct it")


def of_type(where: str, value: object, stated: str) -> None:
    """Check that a value has the annotated type of its field, such as ``int | None``; an int is a valid float."""
    kinds = {word for word in ("bool", "int", "float", "str", "tuple", "None") if re.search(rf"\b{word}\b", stated)}
    if stated.startswith("tuple"):
        kinds = {"tuple"} | (kinds & {"None"})
    found = "None" if value is None else type(value).__name__
    if found not in kinds and not (found == "int" and "float" in kinds):
        raise ConfigError(f"{where}: {value!r}, expected {stated} — correct it")


def divides(name: str, value: int, by_name: str, by: int) -> None:
    """Check that ``value`` is a multiple of ``by``."""
    if value % by:
        raise ConfigError(f"{name}: {value}, expected a multiple of {by_name} {by} — change one of them")


def check_split(split: str) -> None:
    """Check that the train, valid and test shares are finite and at least 0, and that the train share is above 0."""
    try:
        shares = [float(share) for share in re.split("[,/]", split)]
    except ValueError:
        shares = []
    if not 0 < len(shares) <= 3 or not all(math.isfinite(share) and share >= 0 for share in shares) or not shares[0]:
        raise ConfigError(
            f"split: {split!r}, expected shares for train, valid and test, with train above 0 — such as 949,50,1"
        )
