"""Tiling of a kernel over rows into programs and tiles that fit on the chip.

An Ascend 910B core has 192 KB of on-chip memory for vectors, and a grid has at most 65535 programs (triton-ascend,
docs/en/FAQ.md). A CUDA multiprocessor has 64 Ki registers, and CUDA's limit on grids is not reached.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ascend_adapt.errors import KernelError

ON_CHIP_BYTES = 192 * 1024
GRID_LIMIT = 65535
_STAGES = 3
WIDEST = 8192
"""Maximum number of elements of a row in one tile. Wider rows take several tiles."""


@dataclass(frozen=True)
class Tiles:
    """Tiling of one kernel: rows per tile, width of a tile, tiles per row, and warps (CUDA) per program."""

    rows: int
    width: int
    count: int
    warps: int


@functools.lru_cache(maxsize=256)
def tiles(row: int, *, live: int, widest: int = WIDEST) -> Tiles:
    """Return the tiling for rows of ``row`` elements, if ``live`` fp32 copies of a tile are live at once.

    Raises:
        KernelError: a tile does not fit on the chip.
    """
    width = min(1 << max(row - 1, 0).bit_length(), widest)
    rows = max(1, 1024 // width) if row <= width else 1
    used = rows * width * live * 4
    if used > ON_CHIP_BYTES:
        raise KernelError(
            f"a tile of {rows} x {width} elements, {live} live at once: {used} bytes, expected at most "
            f"{ON_CHIP_BYTES} — lower the width"
        )
    return Tiles(rows, width, -(-row // width), min(8, max(2, rows * width // 1024)))


def programs(rows: int, cut: Tiles, on_cuda: bool) -> int:
    """Return the number of programs for ``rows`` rows. In the limited grid of an NPU, each takes several tiles."""
    wanted = -(-rows // cut.rows)
    # One program per row measured 6-8 % faster on an H100 than one program per multiprocessor.
    return wanted if on_cuda else min(wanted, GRID_LIMIT)


def stages(cut: Tiles, *loaded: Any) -> int:
    """Return Triton's ``num_stages`` for a loop in which each iteration loads one tile of each tensor of ``loaded``.

    With three stages, the next two tiles are loaded while one is computed. Without enough shared memory for them, the
    loop is not pipelined.
    """
    used = (_STAGES - 1) * cut.rows * cut.width * sum(each.element_size() for each in loaded)
    return _STAGES if used <= _shared_bytes(loaded[0].device) else 1


@functools.cache
def _shared_bytes(device: Any) -> int:
    if device.type != "cuda":
        return 0
    import torch

    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))


def persistent_programs(rows: int, cut: Tiles, per_processor: int, device: Any) -> int:
    """Return the number of programs of a persistent kernel: at most ``per_processor`` on each multiprocessor.

    Each program loops over tiles of the ``rows`` rows, and can load the next tiles while it computes.
    """
    return min(programs(rows, cut, device.type == "cuda"), per_processor * multiprocessors(device))


@functools.cache
def multiprocessors(device: Any) -> int:
    """Return a lower bound of the number of programs that run concurrently on the device."""
    if device.type != "cuda":
        return 1
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)
