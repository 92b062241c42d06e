"""Dropout inside Triton kernels: a mask is a function of a seed and of an element's place, and never stored."""

from __future__ import annotations

import triton
import triton.language as tl

# Philox with seven rounds passes the usual tests of randomness; the default of ten takes longer than the norm itself.
_ROUNDS = tl.constexpr(7)


def rounded(probability: float) -> tuple[int, float]:
    """Return how many of 65536 elements are dropped, and the scale of the others: an element has 16 random bits."""
    dropped = min(round(probability * 65536), 65535)
    return dropped, 65536 / (65536 - dropped)


@triton.jit
def kept(key, row, first, columns, dropped, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Return which elements are kept of a tile [ROWS, TILE] whose first column is ``first``, a multiple of 8.

    A call of Philox draws the numbers of eight neighbours in a row.
    """
    eight = row * ((columns + 7) // 8) + first // 8 + tl.arange(0, TILE // 8)[None, :]
    a, b, c, d = tl.randint4x(key, eight, n_rounds=_ROUNDS)
    four = tl.join(tl.join(a, c), tl.join(b, d)).to(tl.uint32, bitcast=True)
    least = tl.full((), dropped, tl.uint32) << 16
    return tl.join(four, four << 16).reshape(ROWS, TILE) >= least
