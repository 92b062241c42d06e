"""Reads files that a user names or another process has left. Named pipes and devices are rejected; they could block.

A pipe without a name, such as ``<(command)`` of a shell, is read, and so is /dev/null. Text is UTF-8 in every locale.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import BinaryIO, TextIO

_NULL = os.makedev(1, 3)


def open_binary(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading bytes.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    return open(path, "rb", opener=_opened)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file; raises what open_binary() raises."""
    with open_binary(path) as stream:
        return stream.read()


def open_text(path: str | os.PathLike[str], errors: str = "strict", encoding: str = "utf-8") -> TextIO:
    """Open a file for reading text; raises what open_binary() raises."""
    return io.TextIOWrapper(open_binary(path), encoding, errors)


def read_text(path: str | os.PathLike[str], errors: str = "strict", encoding: str = "utf-8") -> str:
    """Return the text of a file; raises what open_binary() raises.

    Raises:
        UnicodeDecodeError: the file is not text in that encoding.
    """
    with open_text(path, errors, encoding) as stream:
        return stream.read()


def _opened(path: str, flags: int) -> int:
    # Without O_NONBLOCK, the open of a named pipe waits for its writer.
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
    except BlockingIOError:
        # A file server has a lease on it, which only a regular file can have, and gives it back to a call that waits.
        descriptor = os.open(path, flags)
    try:
        if found := _not_regular(descriptor):
            raise OSError(errno.EINVAL, found, path)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _not_regular(descriptor: int) -> str:
    """Return what an open file is, or "" if it can be read to its end."""
    found = os.fstat(descriptor)
    if stat.S_ISFIFO(found.st_mode):
        has_name = not os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:")
        return "is a named pipe, not a regular file" if has_name else ""
    is_device = stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)
    return "is a device, not a regular file" if is_device and found.st_rdev != _NULL else ""
