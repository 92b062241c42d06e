"""How a kernel over rows is cut into programs and tiles, within what a chip holds.

An Ascend 910B core has 192 KB of on-chip memory for vectors and a grid of at most 65535 programs (triton-ascend,
docs/en/FAQ.md); a CUDA multiprocessor has 64 Ki registers, and its grid no limit that matters here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ascend_adapt.errors import KernelError

ON_CHIP_BYTES = 192 * 1024
GRID_LIMIT = 65535
WIDEST = 8192
"""Elements of a row that are held at once; wider rows take several tiles."""


@dataclass(frozen=True)
class Tiles:
    """Rows a program holds at once, the width of a tile, tiles in a row, and warps (CUDA) a program."""

    rows: int
    width: int
    count: int
    warps: int


@functools.lru_cache(maxsize=256)
def tiles(row: int, *, live: int, widest: int = WIDEST) -> Tiles:
    """Return how rows of ``row`` elements are cut when ``live`` fp32 copies of a tile are alive at once.

    Raises:
        KernelError: a tile does not fit on the chip.
    """
    width = min(1 << max(row - 1, 0).bit_length(), widest)
    rows = max(1, 1024 // width) if row <= width else 1
    used = rows * width * live * 4
    if used > ON_CHIP_BYTES:
        raise KernelError(
            f"a tile of {rows} x {width} elements, {live} alive at once: {used} bytes, expected at most "
            f"{ON_CHIP_BYTES} — lower the width"
        )
    return Tiles(rows, width, -(-row // width), min(8, max(2, rows * width // 1024)))


def programs(rows: int, cut: Tiles, device: str) -> int:
    """Return the number of programs for ``rows`` rows on a type of device; each takes several where it limits them."""
    wanted = -(-rows // cut.rows)
    # As many programs as rows measured 6-8 % faster on an H100 than a grid of the multiprocessors' number.
    return wanted if device == "cuda" else min(wanted, GRID_LIMIT)


def multiprocessors(device: Any) -> int:
    """Return how many programs run at the same time on the device, at least."""
    if device.type != "cuda":
        return 1
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)
