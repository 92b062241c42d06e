"""JSON-lines input as blocks of whole lines: what travels to the workers, and where a run can be taken up again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from ascend_adapt.data.inputs import LONGEST_LINE, Input, open_input
from ascend_adapt.errors import DataError


@dataclass(frozen=True)
class Position:
    """A place between two lines: the input's number, the bytes (unpacked) and the lines of it that lie before."""

    input: int = 0
    offset: int = 0
    line: int = 0


@dataclass(frozen=True)
class Block:
    """Whole lines of one input; ``first_line`` counts from 1, ``end`` is the place behind them.

    ``bytes_read`` is how much of all inputs' bytes on disk was read to get here.
    """

    source: Input
    first_line: int
    data: bytes
    end: Position
    bytes_read: int


def read_blocks(inputs: Sequence[Input], block_bytes: int, start: Position) -> Iterator[Block]:
    """Yield all lines from ``start`` on, in blocks of about ``block_bytes``, each from one input.

    Raises:
        DataError: an input cannot be read, or a line is longer than LONGEST_LINE.
    """
    before = sum(source.size for source in inputs[: start.input])
    for number, source in enumerate(inputs[start.input :], start.input):
        here = start if number == start.input else Position(number)
        with open_input(source) as (stream, bytes_read):
            _skip(stream, here.offset, source)
            for data in _whole_lines(stream, block_bytes, source):
                end = Position(number, here.offset + len(data), here.line + data.count(b"\n"))
                yield Block(source, here.line + 1, data, end, before + bytes_read())
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
                f"{source}: ends {count} bytes before the place to go on from — start again from the beginning"
            )
        count -= skipped


def _whole_lines(stream: IO[bytes], block_bytes: int, source: Input) -> Iterator[bytes]:
    # What follows the last line break of a block begins the next one: cheaper than to read on until there is one.
    begun: list[bytes] = []
    length = 0
    while data := stream.read(block_bytes):
        end = data.rfind(b"\n") + 1
        if not end:
            begun.append(data)
            length += len(data)
            if length >= LONGEST_LINE:
                raise DataError(
                    f"{source}: no line break in {LONGEST_LINE} bytes, expected one document a line — is it JSON lines?"
                )
            continue
        yield b"".join([*begun, memoryview(data)[:end]])
        begun = [data[end:]] if end < len(data) else []
        length = len(data) - end
    if begun:
        yield b"".join(begun)
