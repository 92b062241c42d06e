"""Settings that --fit tries (recomputation, micro batch, ZeRO stage, sequence parallelism), and their order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Setting:
    """Values of the options that change memory use; ``micro`` is None if the job's micro batch size is unknown."""

    recompute: bool
    micro: int | None
    zero: int
    sequence: bool

    def __str__(self) -> str:
        """Return the setting as shown in the table."""
        parts = [
            "recomputation" if self.recompute else "no recomputation",
            *([] if self.micro is None else [f"micro batch {self.micro}"]),
            f"ZeRO-{self.zero}",
            *(["sequence parallelism"] if self.sequence else []),
        ]
        return ", ".join(parts)

    def changed_from(self, other: Setting) -> dict[str, Any]:
        """Return the fields that differ from another setting."""
        names = [one.name for one in fields(self)]
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(other, name)}


Choices = Mapping[str, Sequence[Any]]
"""Maps a field of Setting to the values to try instead of the given value."""


def cost(setting: Setting, given: Setting) -> float:
    """Return the relative cost of a setting compared with the given one, used only to order the trials.

    Sequence parallelism, ZeRO-1 and ZeRO-2 communicate as many bytes as before; ZeRO-3 communicates 1.5 times as many.
    A smaller micro batch has smaller matrix products. Recomputation repeats the forward pass.
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
    """Return every allowed setting except the given one, the cheapest first."""
    every = itertools.product(*((getattr(given, name), *values) for name, values in choices.items()))
    settings = {replace(given, **dict(zip(choices, values, strict=True))) for values in every} - {given}
    return sorted(settings, key=lambda setting: (cost(setting, given), str(setting)))
