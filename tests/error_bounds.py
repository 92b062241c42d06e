"""How far a computation may be from the exact result: by the roundings it makes, their dtype, and the terms it sums.

A sum of n terms computed in a dtype of unit roundoff u is off by at most gamma_n = n u / (1 - n u) of the sum of the
terms' magnitudes, in whatever order a machine adds them. Roundings that are independent come to no more than about
lambda sqrt(n) u, except with probability 2 exp(-lambda^2 / 2); the smaller of both is the bound here. Sources: Higham,
Accuracy and Stability of Numerical Algorithms, 2nd edition, lemma 3.1; Higham and Mary, A New Approach to Probabilistic
Rounding Error Analysis, SIAM J. Sci. Comput. 41 (2019), theorem 2.4.

What the terms are is the caller's to state. Where they cancel, their magnitude is more than that of the result: the
ratio of both is the condition of the sum.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

CONFIDENCE = 6.0
"""lambda: one bound in 30 million is exceeded by chance."""

ELEMENTARY = 4
"""Roundings of an exponential, logarithm, root, quotient, tanh or erf: libraries are right to 2 ulp, which is 4 u."""

COMPUTED_IN = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}
"""What kernels compute in for tensors of a dtype."""

Step = tuple[int, torch.dtype] | tuple[int, torch.dtype, float]
"""A number of roundings one after another, the dtype that they are made in, and by how much the rest magnifies them."""


def unit_roundoff(dtype: torch.dtype) -> float:
    """Return the largest relative error of one rounding to ``dtype``."""
    return torch.finfo(dtype).eps / 2


def rounding(count: int, dtype: torch.dtype) -> float:
    """Return the relative error that ``count`` roundings in ``dtype`` may come to."""
    u = unit_roundoff(dtype)
    certain = count * u / (1 - count * u) if count * u < 1 else math.inf
    likely = math.expm1(CONFIDENCE * math.sqrt(count) * u + count * u * u / (1 - u))
    return min(certain, likely)


def relative(*steps: Step) -> float:
    """Return the relative error of a computation that makes these roundings: sum of n terms is (n, dtype)."""
    return sum(rounding(step[0], step[1]) * (step[2] if len(step) > 2 else 1.0) for step in steps)


def of_exponent(argument: Any) -> int:
    """Return the roundings that exp(argument) adds: its argument's relative error counts as often as it is large."""
    return math.ceil(2 * np.abs(argument[np.isfinite(argument)]).max(initial=0.0)) + ELEMENTARY


def assert_within(found: Any, exact: Any, terms: Any, *steps: Step, name: str = "", underflow: float = 1.0) -> None:
    """Assert that ``found`` is ``exact`` but for the roundings of ``steps``.

    Args:
        found: tensor, any dtype and device.
        exact: array or tensor in float64 of the same shape.
        terms: the sum of the magnitudes of the terms that make up each number; broadcasts to ``exact``.
        steps: the roundings, the last of them that to the dtype of ``found``.
        name: stands in the error.
        underflow: what a number that is flushed to zero in fp32 is multiplied by on its way to the result.
    """
    mine, right, size = (_exact(each) for each in (found, exact, terms))
    assert mine.shape == right.shape, f"{name}: shape {mine.shape}, expected {right.shape}"
    np.testing.assert_array_equal(np.isnan(mine), np.isnan(right), err_msg=name)
    spacing = sum(count * torch.finfo(dtype).tiny * torch.finfo(dtype).eps for count, dtype, *_ in steps)
    flushed = underflow * torch.finfo(torch.float32).tiny
    # An infinity is that infinity, and nothing near it.
    size = np.where(np.isinf(right), 0.0, np.maximum(size, np.abs(right)))
    allowed = relative(*steps) * size + spacing + flushed
    with np.errstate(invalid="ignore"):  # of infinities that agree
        error = np.where(mine == right, 0.0, np.abs(mine - right))
    if not (error > allowed).any():
        return
    over = np.unravel_index(np.argmax(error - allowed), error.shape)
    raise AssertionError(
        f"{name}: {mine[over]} at {tuple(map(int, over))} is {error[over]:.3g} from {right[over]}, expected at most "
        f"{np.broadcast_to(allowed, error.shape)[over]:.3g}"
    )


def _exact(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().double().numpy()
    return np.asarray(value, dtype=np.float64)
