"""Dropout inside Triton kernels: the mask is computed from a seed and the index of an element, and is never stored."""

from __future__ import annotations

import triton
import triton.language as tl

# Philox with seven rounds passes the usual tests of randomness; Triton's ten rounds take longer than a norm.
_ROUNDS = tl.constexpr(7)


def unfit(probability: float, elements: int) -> str:
    """Return "" or why the mask of so many elements cannot be drawn: places are counted in int32."""
    return "its dropout takes fewer than 2**31 elements" if probability and elements >= 2**31 else ""


def dropped_and_scale(probability: float) -> tuple[int, float]:
    """Return how many of 65536 elements are dropped, and the scale of the others. Each element has 16 random bits."""
    dropped = min(round(probability * 65536), 65535)
    return dropped, 65536 / (65536 - dropped)


@triton.jit
def keep_mask(key, row, first, columns, dropped, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Return the mask of kept elements, [ROWS, TILE]. The tile's first column, ``first``, is a multiple of 8.

    One call of Philox draws the random bits of eight adjacent columns.
    """
    eight = row * ((columns + 7) // 8) + first // 8 + tl.arange(0, TILE // 8)[None, :]
    a, b, c, d = tl.randint4x(key, eight, n_rounds=_ROUNDS)
    four = tl.join(tl.join(a, c), tl.join(b, d)).to(tl.uint32, bitcast=True)
    least = tl.full((), dropped, tl.uint32) << 16
    return tl.join(four, four << 16).reshape(ROWS, TILE) >= least
