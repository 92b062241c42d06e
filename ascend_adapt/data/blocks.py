"""Blocks of JSON lines, the unit of work of preprocessing, and the positions from which a run can resume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from ascend_adapt.data.inputs import LONGEST_LINE, Input, open_input
from ascend_adapt.errors import BadLine, DataError


@dataclass(frozen=True)
class Position:
    """A position between two lines: the number of the input, and the (unpacked) bytes and lines before it."""

    input: int = 0
    offset: int = 0
    line: int = 0


@dataclass(frozen=True)
class TextBlock:
    """Complete lines of one input. ``first_line`` counts from 1, and ``end`` is the position after the lines.

    ``bytes_read`` counts the bytes on disk that were read so far from all inputs. If a line was too long to keep,
    ``too_long`` is its length in bytes, and ``data`` is empty.
    """

    source: Input
    first_line: int
    data: bytes
    end: Position
    bytes_read: int
    too_long: int = 0

    @property
    def first_byte(self) -> int:
        """Offset in bytes of the first line in the unpacked input."""
        return self.end.offset - len(self.data) - self.too_long


def read_blocks(
    inputs: Sequence[Input], block_bytes: int, start: Position, *, skip_long_lines: bool = False
) -> Iterator[TextBlock]:
    """Yield all lines from ``start`` on, in blocks of about ``block_bytes``, each from one input.

    Raises:
        DataError: an input cannot be read.
        BadLine: a line is longer than LONGEST_LINE, and ``skip_long_lines`` is off.
    """
    before = sum(source.size for source in inputs[: start.input])
    for number, source in enumerate(inputs[start.input :], start.input):
        here = start if number == start.input else Position(number)
        with open_input(source) as (stream, bytes_read):
            _skip(stream, here.offset, source)
            for data, too_long in _whole_lines(stream, block_bytes, skip_long_lines):
                if too_long and not skip_long_lines:
                    raise BadLine(long_line(source, here.line + 1))
                lines = data.count(b"\n") + bool(too_long)
                end = Position(number, here.offset + len(data) + too_long, here.line + lines)
                yield TextBlock(source, here.line + 1, data, end, before + bytes_read(), too_long)
                here = end
        before += source.size


def _skip(stream: IO[bytes], count: int, source: Input) -> None:
    if count and source.path.endswith((".jsonl", ".json")):
        stream.seek(count)
        return
    while count:
        skipped = len(stream.read(min(count, 1 << 20)))
        if not skipped:
            raise DataError(
                f"{source}: ends {count} bytes before the position to resume from — start again from the beginning"
            )
        count -= skipped


def long_line(source: Input, line: int) -> str:
    """Return the message for a line that is too long."""
    return (
        f"{source}:{line}: no line break in {LONGEST_LINE} bytes, expected one document per line — is the file JSON "
        "lines? Fix the line or pass --on-bad-line skip"
    )


def _whole_lines(stream: IO[bytes], block_bytes: int, skip_long_lines: bool) -> Iterator[tuple[bytes, int]]:
    """Yield complete lines and 0, or b"" and the length of an overlong line (read so far, if it is not skipped)."""
    # Bytes after the last line break start the next block, which is cheaper than reading to the next line break.
    begun: list[bytes] = []
    length = 0
    while data := stream.read(block_bytes):
        if length >= LONGEST_LINE:
            end = data.find(b"\n") + 1
            length += end or len(data)
            if not end:
                continue
            yield b"", length
            data, length = data[end:], 0
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join([*begun, memoryview(data)[:end]]), 0
            begun, length = [], 0
        if end < len(data):
            begun.append(data[end:])
            length += len(data) - end
        if length >= LONGEST_LINE:
            begun.clear()
            if not skip_long_lines:
                break
    if length >= LONGEST_LINE:
        yield b"", length
    elif begun:
        yield b"".join(begun), 0
