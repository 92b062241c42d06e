"""Axes of a chart: a range of values mapped to pixels, and its ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass

_ORDERS = 30.0
"""An axis is logarithmic if the ratio of the largest value to the smallest is at least this."""


@dataclass(frozen=True)
class Scale:
    """Maps values from ``least`` to ``most`` to pixels from ``start`` to ``end``, logarithmically if ``is_log``."""

    least: float
    most: float
    start: float
    end: float
    is_log: bool = False

    @staticmethod
    def of(values: list[float], start: float, end: float, *, margin: float = 0.0, may_be_log: bool = False) -> Scale:
        """Return the scale of values, with a margin on both sides of ``margin`` times their range."""
        least, most = min(values), max(values)
        if may_be_log and least > 0 and most / least >= _ORDERS:
            return Scale(10 ** math.floor(math.log10(least)), 10 ** math.ceil(math.log10(most)), start, end, True)
        room = (most - least) * margin or (abs(most) or 1.0) * 0.05 * bool(margin)
        bottom = least - room
        return Scale(0.0 if bottom < 0 <= least else bottom, most + room, start, end)

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        least, most = self.least, self.most
        if self.is_log:
            least, most, value = math.log10(least), math.log10(most), math.log10(value)
        share = (value - least) / (most - least) if most > least else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, at_most: int) -> list[float]:
        """Return at most ``at_most`` round values in the range, or powers of ten."""
        if self.is_log:
            first, last = round(math.log10(self.least)), round(math.log10(self.most))
            return [10.0**power for power in range(first, last + 1, math.ceil((last - first + 1) / at_most))]
        if self.most <= self.least:
            return [self.least]
        unit = 10 ** math.floor(math.log10((self.most - self.least) / at_most))
        return next(found for factor in (1, 2, 5, 10, 20) if len(found := self._multiples(unit * factor)) <= at_most)

    def _multiples(self, step: float) -> list[float]:
        first, last = math.ceil(self.least / step - 1e-9), math.floor(self.most / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def short(value: float) -> str:
    """Return a value as text for an axis or tile, in at most four digits, such as 0.0003, 2.513, 65.5k, 1.2e-7."""
    if not abs(value) < 1e15:
        return f"{value:.3g}"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.4g}".replace("e-0", "e-")


def exact(value: float) -> str:
    """Return a value as text for a table, in seven digits."""
    return f"{value:.7g}"
