"""Tiling of kernels that write a matrix and sum its columns: strips of columns, each shared by groups of rows.

Each group writes its own sums, and adding them in order keeps the result deterministic.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ascend_adapt.kernels.tiles import multiprocessors

_WIDTH, _ELEMENTS, _PER_PROCESSOR = 256, 4096, 8


@dataclass(frozen=True)
class Strips:
    """Programs = strips * ``groups``; a tile has ``rows`` x ``width`` elements."""

    programs: int
    groups: int
    rows: int
    width: int


def strips(rows: int, columns: int, device: Any) -> Strips:
    """Return the tiling of a matrix [rows, columns] on a device."""
    return _strips(rows, columns, multiprocessors(device))


@functools.lru_cache(maxsize=256)
def _strips(rows: int, columns: int, processors: int) -> Strips:
    width = min(_WIDTH, max(16, 1 << (columns - 1).bit_length()))
    height, count = _ELEMENTS // width, -(-columns // width)
    groups = max(1, min(-(-rows // height), -(-processors * _PER_PROCESSOR // count)))
    return Strips(count * groups, groups, height, width)
