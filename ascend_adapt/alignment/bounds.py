"""Tolerances for two computations of the same result, from their dtypes and the lengths of their sums.

A sum of n terms in a dtype of unit roundoff u has an error of at most about lambda sqrt(n) u times the size of its
terms, except with probability 2 exp(-lambda^2 / 2) (Higham and Mary, SIAM J. Sci. Comput.
41, 2019, theorem 2.4). Kernels accumulate 16-bit tensors in fp32, and round to the tensor's dtype at the end of each
operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

CONFIDENCE = 6.0
"""The lambda of the module's docstring: one bound in 30 million is exceeded by chance."""

OPERATIONS_A_CALL = 8
"""Number of successive roundings to the tensor's dtype in a module, without those in the modules inside it."""

GAIN = 16.0
"""Factor by which a module, or code between modules, may magnify the difference of its inputs.

Norms divide by the deviation, softmax depends on the size of its scores, and gradients subtract means. A fault is
reported where the difference grows by more than this in one step. Smaller growth is not a finding.
"""

UNIT_ROUNDOFF = {
    "float64": 2.0**-24,  # digests are fp32
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}


def unit_roundoff(dtypes: Iterable[str]) -> float:
    """Return the largest unit roundoff of the dtypes. Integers are exact, except for their digests."""
    return max((UNIT_ROUNDOFF.get(dtype, 2.0**-24) for dtype in dtypes), default=2.0**-24)


def allowed(terms: int, roundings: int, storage: float, compute: float) -> float:
    """Return the largest relative difference that rounding explains between two computations of one result.

    Args:
        terms: number of terms summed one after another, in ``compute``.
        roundings: number of successive operations whose results are rounded to ``storage``.
        storage: unit roundoff of the tensors.
        compute: unit roundoff of the accumulation.
    """
    return 2 * CONFIDENCE * (math.sqrt(terms) * compute + math.sqrt(roundings) * storage)


def copied(dtypes: Iterable[str]) -> float:
    """Return the largest relative difference between two copies of a tensor after a rounding to one of these dtypes."""
    return allowed(0, 1, unit_roundoff(dtypes), unit_roundoff(()))


def elementwise(dtypes: Iterable[str]) -> float:
    """Return the largest relative difference that elementwise operations in these dtypes may cause."""
    return allowed(1, OPERATIONS_A_CALL, unit_roundoff(dtypes), unit_roundoff(()))
