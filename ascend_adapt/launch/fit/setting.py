"""What is tried: recomputation, micro batch, ZeRO stage and sequence parallelism, and the order of combinations."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Setting:
    """Values of the options that change memory; ``micro`` is None if the job's micro batch is not known."""

    recompute: bool
    micro: int | None
    zero: int
    sequence: bool

    def __str__(self) -> str:
        """Return it as the table shows it."""
        parts = [
            "recomputation" if self.recompute else "no recomputation",
            *([] if self.micro is None else [f"micro batch {self.micro}"]),
            f"ZeRO-{self.zero}",
            *(["sequence parallelism"] if self.sequence else []),
        ]
        return ", ".join(parts)

    def changed_from(self, other: Setting) -> dict[str, Any]:
        """Return the fields that differ from those of another setting."""
        names = [one.name for one in fields(self)]
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(other, name)}


Choices = Mapping[str, Sequence[Any]]
"""Field of a setting -> the values to try instead of the given one."""


def cost(setting: Setting, given: Setting) -> float:
    """Return what a setting costs in comparison with the given one; it only orders the trials.

    Sequence parallelism, ZeRO-1 and ZeRO-2 move as many bytes as before, ZeRO-3 half as many again. A smaller
    micro batch has smaller matrix products. Recomputation repeats the forward pass.
    """
    halvings = 0 if not (given.micro and setting.micro) else (given.micro // setting.micro).bit_length() - 1
    return (
        0.01 * (setting.sequence != given.sequence)
        + 0.01 * abs(setting.zero - given.zero)
        + 0.5 * (setting.zero == 3 and given.zero != 3)
        + 0.1 * halvings
        + 0.33 * (setting.recompute and not given.recompute)
    )


def in_order(given: Setting, choices: Choices) -> list[Setting]:
    """Return every setting that the choices allow except the given one, the cheapest first."""
    every = itertools.product(*((getattr(given, name), *values) for name, values in choices.items()))
    settings = {replace(given, **dict(zip(choices, values, strict=True))) for values in every} - {given}
    return sorted(settings, key=lambda setting: (cost(setting, given), str(setting)))
