"""A terminal for tests, and what it shows."""

from __future__ import annotations

import os
import pty
import re
import struct
import termios
from fcntl import ioctl


def terminal(columns):
    """Return both ends of a terminal: who reads what it shows has the first."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    return ours, theirs


def read_all(end):
    """Return what was written to a terminal until nobody has it open."""
    seen = b""
    while True:
        try:
            data = os.read(end, 1 << 16)
        except OSError:
            return seen
        seen += data


def screen(seen, columns):
    """Return the lines that a terminal shows after that was written to it; a line that would wrap is an error."""
    lines, column = [""], 0
    for piece in re.findall(rb"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", seen):
        if piece == b"\r":
            column = 0
        elif piece == b"\n":
            lines.append("")
        elif piece == b"\x1b[2K":
            lines[-1] = ""
        elif not piece.startswith(b"\x1b"):
            text, line = piece.decode(), lines[-1].ljust(column)
            lines[-1], column = line[:column] + text + line[column + len(text) :], column + len(text)
            assert column < columns, line
    return [line.rstrip() for line in lines]
