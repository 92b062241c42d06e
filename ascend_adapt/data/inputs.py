"""Inputs of preprocess: files, folders, globs, comma lists and standard input, and how each is opened."""

from __future__ import annotations

import glob
import gzip
import io
import json
import lzma
import os
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from ascend_adapt.data.parquet import ParquetLines
from ascend_adapt.errors import DataError, not_installed, one_line, system_error
from ascend_adapt.whole_numbers import whole_number

STDIN = "-"
JSON_LINES = (".jsonl", ".json")
COMPRESSED = (".gz", ".xz", ".zst")
SUFFIXES = (*JSON_LINES, *(f"{lines}{packed}" for lines in ("", *JSON_LINES) for packed in COMPRESSED))
PARQUET = ".parquet"
ARCHIVES = (".jsonl.zst.tar", ".dat.zst", PARQUET)

# The Pile's files may need more than the 128 MiB window that decoders allow by default.
ZSTD_WINDOW_LOG_MAX = 31

STREAM_BYTES = 1 << 16

# In bytes. A longer line is not taken for a document.
LONGEST_LINE = 1 << 30


@dataclass(frozen=True)
class Input:
    """One input file, read as JSON lines.

    ``member`` is the name of the file inside an archive. ``keys`` are the columns to read from a Parquet file.
    """

    path: str
    member: str = ""
    keys: tuple[str, ...] = ("text",)

    def __str__(self) -> str:
        return "standard input" if self.path == STDIN else self.path + (f"/{self.member}" if self.member else "")

    @property
    def size(self) -> int:
        """Size in bytes on disk, 0 if unknown."""
        return 0 if self.path == STDIN or self.member else Path(self.path).stat().st_size


def find_inputs(words: Sequence[str], keys: tuple[str, ...] = ("text",)) -> list[Input]:
    """Return the inputs that ``words`` list, in order. Words are paths, globs or comma lists; empty items are ignored.

    A folder stands for the files in it with a known suffix, sorted by name, as in lm_dataformat.

    Raises:
        DataError: no input is listed, a file does not exist, or its suffix is not in SUFFIXES or ARCHIVES.
    """
    paths = [path for word in words for item in _items(word) for path in _found(item)]
    if not paths:
        raise DataError("--input: lists no files, expected at least one — pass a path, a glob or - for standard input")
    return [replace(found, keys=keys) for path in paths for found in _members(path)]


def _items(word: str) -> list[str]:
    # The name of an existing file may contain a comma.
    # os.path is used because Path.exists raises if a comma list is longer than a file name may be.
    items = [word] if os.path.exists(word.strip()) else word.split(",")
    return [item.strip() for item in items if item.strip()]


def _found(item: str) -> list[str]:
    with _reading_errors(item):
        return _matches(item)


def _matches(item: str) -> list[str]:
    if item == STDIN:
        return [item]
    if Path(item).is_dir():
        inside = [str(path) for path in sorted(Path(item).iterdir()) if _has_known_suffix(path.name)]
        if not inside:
            raise DataError(
                f"{item}: a folder without input files, expected names ending in {', '.join((*SUFFIXES, *ARCHIVES))} — "
                "choose another folder, or rename the files"
            )
        return inside
    if Path(item).exists():
        return [item]
    found = sorted(glob.glob(item, recursive=True))
    if not found:
        raise DataError(f"{item}: no such file, expected an input file — check --input")
    return found


def _members(path: str) -> list[Input]:
    if path == STDIN:
        return [Input(path)]
    with _reading_errors(path):
        regular = Path(path).is_file()
    if not regular:
        raise DataError(f"{path}: not a regular file, expected a file — read a pipe with --input -")
    if path.endswith(".jsonl.zst.tar"):
        with _reading_errors(path), tarfile.open(path, "r:") as archive:
            members = [Input(path, member.name) for member in archive if member.isfile()]
            _refuse_early_end(archive)
        if not members:
            raise DataError(f"{path}: contains no regular file, expected text in at least one — check the archive")
        return members
    if not _has_known_suffix(path):
        raise DataError(
            f"{path}: unknown suffix, expected one of {', '.join((*SUFFIXES, *ARCHIVES))} — rename the file"
        )
    return [Input(path)]


def _refuse_early_end(archive: tarfile.TarFile) -> None:
    """Reject a truncated archive. A complete archive ends in zeros, but tarfile accepts any end."""
    stream: Any = archive.fileobj
    stream.seek(archive.offset)
    header = stream.read(tarfile.BLOCKSIZE)
    if len(header) < tarfile.BLOCKSIZE:
        raise EOFError(f"no end of the archive after byte {archive.offset}")
    if header.strip(b"\0"):
        raise DataError(
            f"no member header at byte {archive.offset}, expected a header or the end — the archive is damaged"
        )


def _has_known_suffix(path: str) -> bool:
    if path.endswith(ARCHIVES):
        return True
    name = Path(path)
    # A .txt.gz does not contain JSON lines.
    inner = name.with_suffix("").suffix if name.suffix in COMPRESSED else name.suffix
    return path.endswith(SUFFIXES) and inner in ("", *JSON_LINES)


@contextmanager
def open_input(source: Input) -> Iterator[tuple[IO[bytes], Callable[[], int]]]:
    """Open JSON lines for reading; yield the stream, and a function that returns the bytes read on disk so far.

    Raises:
        DataError: the file is truncated, has a wrong suffix, or cannot be read. This may be raised during reading.
    """
    with _reading_errors(str(source)):
        if source.path == STDIN:
            yield sys.stdin.buffer, lambda: 0
        elif source.member:
            with tarfile.open(source.path, "r:") as archive:
                packed = archive.extractfile(source.member)
                assert packed is not None, "only regular members are listed"
                with _zstd(packed) as lines:
                    yield lines, lambda: 0
        else:
            with open(source.path, "rb", buffering=0) as raw, _decompressed(raw, source) as lines:
                if source.path.endswith(COMPRESSED) and not source.size:
                    raise EOFError("0 bytes")  # some decoders accept an empty file
                yield lines, raw.tell


def _decompressed(raw: IO[bytes], source: Input) -> AbstractContextManager[IO[bytes]]:
    path = source.path
    if path.endswith(PARQUET):
        return io.BufferedReader(ParquetLines(raw, source.keys), STREAM_BYTES)
    if path.endswith(".dat.zst"):
        return io.BufferedReader(_LengthPrefixed(_zstd(raw)))
    if path.endswith(".gz"):
        return gzip.open(raw)  # type: ignore[return-value]  # a GzipFile reads like any stream
    if path.endswith(".xz"):
        return io.BufferedReader(_XzStreams(raw), STREAM_BYTES)
    if path.endswith(".zst"):
        return _zstd(raw)
    return raw


def _zstd(raw: IO[bytes]) -> IO[bytes]:
    try:
        if sys.version_info >= (3, 14):
            from compression.zstd import DecompressionParameter, ZstdFile
        else:
            from backports.zstd import DecompressionParameter, ZstdFile
    except ModuleNotFoundError as error:
        raise DataError(not_installed("backports.zstd", ".zst files", "data")) from error
    stream: Any = ZstdFile(raw, options={DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG_MAX})
    return stream  # type: ignore[no-any-return]


class _XzStreams(io.RawIOBase):
    """Reads all streams of an .xz file. lzma.open would take a damaged second stream for the end of the file."""

    def __init__(self, raw: IO[bytes]):
        self._raw = raw
        self._unpacker: lzma.LZMADecompressor | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            packed = b""
            if self._unpacker is None or self._unpacker.eof:
                # Zeros may pad the space between streams.
                packed = (self._unpacker.unused_data if self._unpacker else b"").lstrip(b"\0")
                while not packed:
                    packed = self._raw.read(STREAM_BYTES)
                    if not packed:
                        return 0
                    packed = packed.lstrip(b"\0")
                self._unpacker = lzma.LZMADecompressor()
            elif self._unpacker.needs_input:
                packed = self._raw.read(STREAM_BYTES)
                if not packed:
                    raise EOFError("in the middle of a stream")
            data = self._unpacker.decompress(packed, len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)


class _LengthPrefixed(io.RawIOBase):
    """Reads lm_dataformat's DatArchive as JSON lines. Each text follows its length in bytes, in sixteen digits."""

    def __init__(self, stream: IO[bytes]):
        self._stream = stream
        self._line = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._line:
            digits = self._exactly(16, may_end=True)
            if not digits:
                return 0
            length = whole_number(digits.decode("ascii", errors="replace"))
            if length is None or length > LONGEST_LINE:
                raise DataError(
                    f"length {digits!r}, expected sixteen digits of at most {LONGEST_LINE} — the archive is damaged"
                )
            text = self._exactly(length, may_end=False).decode("utf-8")
            self._line = json.dumps({"text": text}).encode() + b"\n"
        part, self._line = self._line[: len(buffer)], self._line[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def _exactly(self, count: int, *, may_end: bool) -> bytes:
        data = self._stream.read(count)
        if len(data) < count and (data or not may_end):
            raise EOFError(f"{len(data)} of {count} bytes")
        return data

    def close(self) -> None:
        self._stream.close()
        super().close()


@contextmanager
def _reading_errors(name: str) -> Iterator[None]:
    try:
        yield
    except EOFError as error:
        raise DataError(f"{name}: ends early ({error}) — the copy is incomplete, copy it again") from error
    except OSError as error:
        raise DataError(f"{name}: {system_error(error)}, expected a readable file — check the file") from error
    except DataError as error:
        raise error if str(error).startswith(name) else DataError(f"{name}: {error}") from error
    except Exception as error:
        # zlib.error, LZMAError, ZstdError, TarError, UnicodeDecodeError have no common base class.
        raise DataError(
            f"{name}: cannot be unpacked ({one_line(error)}) — it is damaged, or its suffix is wrong"
        ) from error
