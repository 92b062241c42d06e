"""Memory of this process: its resident size, and returning freed blocks to the system."""

from __future__ import annotations

import ctypes
import os

# From glibc's <malloc.h>. Freed blocks of this size, and the free end of a heap, are returned to the system.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGE = {_M_MMAP_THRESHOLD: 4 << 20, _M_TRIM_THRESHOLD: 16 << 20}


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def give_back_large_blocks() -> bool:
    """Make glibc return large freed blocks to the system; False if the C library is not glibc.

    By default every thread keeps up to 32 MB after the first few documents of several MB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(parameter, size) for parameter, size in _LARGE.items())
