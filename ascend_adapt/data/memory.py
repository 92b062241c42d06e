"""How much memory this process holds, and that what it frees goes back to the system."""

from __future__ import annotations

import ctypes
import os

# Of glibc's <malloc.h>. A block of this many bytes is the system's again once it is freed, and so is the end of a heap.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGE = {_M_MMAP_THRESHOLD: 4 << 20, _M_TRIM_THRESHOLD: 16 << 20}


def resident_bytes() -> int:
    """Return the bytes of memory that this process has in use."""
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def give_back_large_blocks() -> bool:
    """Make glibc give large blocks back when they are freed; False where the C library is another one.

    Left alone, it keeps up to 32 MB each after the first few documents of several MB, in every thread.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(parameter, size) for parameter, size in _LARGE.items())
