"""Memory of this process: reads the resident size, and makes glibc return freed blocks to the system."""

from __future__ import annotations

import ctypes
import os

# From glibc's <malloc.h>. Freed blocks above the first size, and a free heap end above the second, are returned.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGE = {_M_MMAP_THRESHOLD: 4 << 20, _M_TRIM_THRESHOLD: 16 << 20}


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def give_back_large_blocks() -> bool:
    """Make glibc return large freed blocks to the system. Return False if the C library is not glibc.

    By default, every thread keeps up to 32 MB after a few documents of several MB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(parameter, size) for parameter, size in _LARGE.items())
