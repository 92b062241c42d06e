"""Memory-mapped read-only files without open descriptors.

Python's mmap keeps a descriptor for each mapping (until 3.13's trackfd), and so does numpy.memmap. A few hundred token
files with their indices then exceed the usual limit of 1024. The system needs no descriptor once a file is mapped.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ascend_adapt import regular_files

_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap = _libc.mmap, _libc.munmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


def map_array(path: str | os.PathLike[str], dtype: DTypeLike = np.uint8) -> NDArray[Any]:
    """Return a file as a one-dimensional read-only array of ``dtype``.

    Raises:
        OSError: the file cannot be opened or mapped.
        ValueError: the length of the file is not a multiple of the item size.
    """
    with regular_files.open_binary(path) as stream:
        return np.frombuffer(_mapped(stream), dtype)


def map_npy(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Return the array of a .npy file that numpy.save has written, read-only.

    Raises:
        OSError: the file cannot be opened or mapped.
        ValueError: the file is damaged, or holds Python objects, which run code when loaded.
    """
    with regular_files.open_binary(path) as stream:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError(f"{path}: not version 1.0 of the .npy format")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        begin = stream.tell()
        content = _mapped(stream)
    if dtype.hasobject or fortran or len(content) != begin + dtype.itemsize * int(np.prod(shape, dtype=object)):
        raise ValueError(f"{path}: not the plain array that its header announces")
    return np.frombuffer(content[begin:], dtype).reshape(shape)


def _mapped(stream: BinaryIO) -> memoryview:
    length = os.fstat(stream.fileno()).st_size
    if not length:  # an empty file cannot be mapped
        return memoryview(b"")
    address = _mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, stream.fileno(), 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(Path(stream.name)))
    content = (ctypes.c_ubyte * length).from_address(address)
    # Not unmapped at exit, when other threads may still read. The system unmaps it.
    weakref.finalize(content, _munmap, address, length).atexit = False
    return memoryview(content).toreadonly()
