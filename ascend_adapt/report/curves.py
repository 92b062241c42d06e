"""Curves of a run, gathered from its log lines or metrics.jsonl, and thinned for a chart."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from ascend_adapt.report import metrics
from ascend_adapt.report.log_lines import FORMATS, Point
from ascend_adapt.report.metrics import Metric

_INFINITE = 1e300
"""Larger values count as Inf, because an axis could not show them."""
_MOST_ITERATIONS = 1e15
_ZERO_IS_UNKNOWN = (metrics.MEMORY, metrics.TFLOPS, metrics.MFU)


@dataclass
class Curve:
    """Values ``y`` at ``x``, in the unit ``axis`` (iterations or epochs). A later value at the same x replaces it."""

    metric: Metric
    variant: str = ""
    axis: str = "iteration"
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)

    def add(self, x: float, y: float) -> None:
        """Add a value. Drop values after ``x``, since the run has then resumed from an earlier checkpoint."""
        if self.x and x <= self.x[-1]:
            end = bisect_left(self.x, x)
            del self.x[end:], self.y[end:]
        self.x.append(x)
        self.y.append(y)

    @property
    def spoiled(self) -> list[float]:
        """Every x whose value is NaN or Inf."""
        return [x for x, y in zip(self.x, self.y, strict=True) if not abs(y) < _INFINITE]

    @property
    def finite(self) -> list[tuple[float, float]]:
        """The points (x, y) whose value is finite."""
        return [(x, y) for x, y in zip(self.x, self.y, strict=True) if abs(y) < _INFINITE]


@dataclass(frozen=True)
class Bucket:
    """Mean, minimum and maximum of consecutive values of a curve. ``x`` is that of the last value."""

    x: float
    mean: float
    least: float
    most: float


def thinned(curve: Curve, at_most: int) -> list[Bucket]:
    """Return the finite values of a curve in at most ``at_most`` buckets of equal counts. ``most`` keeps spikes."""
    values = curve.finite
    count = min(at_most, len(values))
    buckets = []
    for number in range(count):
        part = values[number * len(values) // count : (number + 1) * len(values) // count]
        ys = [y for _, y in part]
        buckets.append(Bucket(part[-1][0], math.fsum(ys) / len(ys), min(ys), max(ys)))
    return buckets


class Gathered:
    """Curves of one log, by metric, variant and log format."""

    def __init__(self) -> None:
        self.curves: dict[tuple[Metric, str, str], Curve] = {}

    def add(self, points: Iterable[Point]) -> None:
        """Add points in the order of the log."""
        for one in points:
            key = (one.metric, one.variant, one.format)
            curve = self.curves.setdefault(key, Curve(one.metric, one.variant, one.axis))
            if curve.axis == one.axis and abs(one.x) < _MOST_ITERATIONS:
                curve.add(one.x, one.y)


def chosen(logs: Iterable[Gathered]) -> list[Curve]:
    """Return one curve for each metric and variant, first those without a variant.

    Several ranks may print the same metric, or an engine and the program that uses it. The curve is taken from the log
    and format with the most values. A device without known memory or speed, such as a CPU, reports zeros, which give no
    curve.
    """
    best: dict[tuple[Metric, str], tuple[Curve, str]] = {}
    for log in logs:
        for (metric, variant, format_), curve in log.curves.items():
            known = best.get((metric, variant))
            if known is None or _rank(curve, format_) < _rank(*known):
                best[metric, variant] = curve, format_
    curves = [curve for curve, _ in best.values()]
    useful = [one for one in curves if one.x and (one.metric not in _ZERO_IS_UNKNOWN or any(one.y))]
    return sorted(useful, key=lambda one: one.variant != "")


def _rank(curve: Curve, format_: str) -> tuple[int, int]:
    return -len(curve.x), FORMATS.index(format_)
