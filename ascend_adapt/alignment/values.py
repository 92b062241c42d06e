"""The digest of a tensor, joined from the shards of tensor-parallel ranks, and the distance between two tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

NORM, SUM, MIN, MAX, NANS, LARGES = range(6)
FIRST_BUCKET, BUCKETS = 6, 8
WIDTH = FIRST_BUCKET + BUCKETS * BUCKETS
"""Numbers of a digest."""


@dataclass(frozen=True)
class Value:
    """A tensor of one run: its digest in float64, dtype and full shape."""

    numbers: np.ndarray
    dtype: str
    shape: tuple[int, ...]

    @property
    def norm(self) -> float:
        """The Euclidean norm. If it was not recorded, it is estimated from the sketch, or from minimum and maximum."""
        sketch = self.numbers[FIRST_BUCKET:]
        for norm in (float(self.numbers[NORM]), math.sqrt(float((sketch**2).sum()))):
            if not math.isnan(norm):
                return norm
        return math.hypot(self.numbers[MIN], self.numbers[MAX])

    @property
    def is_float(self) -> bool:
        """Whether the dtype is floating-point."""
        return self.dtype.startswith(("float", "bfloat", "complex"))

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        _, total, low, high, nans, larges = (float(each) for each in self.numbers[:FIRST_BUCKET])
        marks = f", {nans:.0f} NaN" * (nans > 0) + f", {larges:.0f} Inf or fill values" * (larges > 0)
        mean = total / max(1, self.count)
        shape = ", ".join(map(str, self.shape))
        return f"{self.dtype}[{shape}] norm {self.norm:.6g}, mean {mean:.4g}, min {low:.4g}, max {high:.4g}{marks}"


def distance(one: Value, other: Value) -> float:
    """Return the estimated Euclidean distance of two tensors, which is infinite if only one has NaN or Inf."""
    import numpy as np

    a, b = one.numbers, other.numbers
    if a[NANS] != b[NANS] or a[LARGES] != b[LARGES]:
        return math.inf
    with np.errstate(invalid="ignore"):  # Inf - Inf is NaN, and skipped like the sketch that msprobe does not keep
        apart = a - b
        estimates = [
            float(np.linalg.norm(apart[FIRST_BUCKET:])),
            abs(float(apart[NORM])),  # this and the following are lower bounds of the distance
            abs(float(apart[SUM])) / math.sqrt(max(1, one.count)),
            abs(float(apart[MIN])),
            abs(float(apart[MAX])),
        ]
    return max((each for each in estimates if not math.isnan(each)), default=0.0)


def error(one: Value | None, other: Value | None) -> float:
    """Return the distance relative to the larger norm: 0 if both tensors are zero, or one is missing."""
    if one is None or other is None:
        return 0.0
    size = max(one.norm, other.norm)
    apart = distance(one, other)
    return apart / size if size > 0 else (0.0 if apart == 0 else math.inf)


def factor(one: Value, other: Value) -> tuple[float, float]:
    """Return the factor that brings the first tensor closest to the second, and the remaining relative distance."""
    a, b = one.numbers[FIRST_BUCKET:], other.numbers[FIRST_BUCKET:]
    times = float(a @ b) / float(a @ a) if a.any() else 0.0
    size = math.sqrt(float(b @ b))
    return times, math.sqrt(float(((b - times * a) ** 2).sum())) / size if size else 0.0


def value_of(entries: list[dict[str, Any]], digests: list[np.ndarray], key: str = "row") -> Value | None:
    """Return the tensor, or with ``of="gradient"`` its gradient, that a group of tensor-parallel ranks recorded.

    Args:
        entries: the entry of each rank.
        digests: the digests of each rank.
    """
    import numpy as np

    rows = [entry.get(key) for entry in entries]
    if any(row is None for row in rows):
        return None
    shard = entries[0].get("gradient_shard", entries[0].get("shard")) if key == "gradient" else entries[0].get("shard")
    each = [table[row].astype(np.float64) for table, row in zip(digests, rows, strict=True)]
    if any(np.isnan(one[NANS]) for one in each):  # it could not be digested, such as a sparse gradient
        return None
    shape = list(entries[0]["shape"])
    if shard is None or len(entries) == 1:
        numbers = each[0]
    else:
        numbers = np.sum(each, axis=0)
        numbers[MIN], numbers[MAX] = min(one[MIN] for one in each), max(one[MAX] for one in each)
        numbers[NORM] = math.sqrt(sum(float(one[NORM]) ** 2 for one in each))
        if shard[0] is None:  # The norm and extremes of a sum do not follow from those of its terms.
            numbers[[NORM, MIN, MAX]] = math.nan
        else:
            shape[shard[0]] *= len(entries)
    return Value(numbers, entries[0]["dtype"], tuple(shape))
