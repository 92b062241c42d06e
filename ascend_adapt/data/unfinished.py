"""Unfinished token files. They get their final names when all are complete, and a killed run can resume.

Next to PREFIX_KEY_document are the hidden files .NAME.bin.unfinished, .NAME.sizes.unfinished (i32 [S]) and later
.NAME.idx.unfinished. One journal for all keys has the lengths up to which the files are valid. On resuming, the rest is
cut off.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ascend_adapt import regular_files
from ascend_adapt.data.indexed_dataset import bin_path, idx_path
from ascend_adapt.data.mapping import map_array
from ascend_adapt.data.token_index import write_index
from ascend_adapt.errors import DataError, system_error


class UnfinishedTokens:
    """Writes the unfinished token files of one prefix. ``add`` appends complete sequences."""

    def __init__(self, prefix: Path, dtype: np.dtype[Any], *, sequences: int = 0, tokens: int = 0):
        self.prefix = prefix
        self.dtype = dtype
        self.sequences = sequences
        self.tokens = tokens
        self._bin = _open_at(hidden(prefix, "bin"), tokens * dtype.itemsize)
        self._sizes = _open_at(hidden(prefix, "sizes"), sequences * 4)

    def add(self, tokens: NDArray[Any], sizes: NDArray[np.int64]) -> None:
        """Append sequences of ``sizes`` tokens each.

        Raises:
            DataError: a token or size does not fit the stored dtype.
        """
        limits = np.iinfo(self.dtype)
        if len(tokens) and tokens.dtype != self.dtype and not limits.min <= tokens.min() <= tokens.max() <= limits.max:
            token = next(int(edge) for edge in (tokens.max(), tokens.min()) if not limits.min <= edge <= limits.max)
            raise DataError(
                f"{self.prefix}: token id {token}, expected {limits.min} to {limits.max}, as {self.dtype.name}"
                " — the vocabulary size that the tokenizer reports is too small for its ids"
            )
        if len(sizes) and sizes.max() > np.iinfo(np.int32).max:
            raise DataError(
                f"{self.prefix}: a document of {sizes.max()} tokens, expected below 2**31 — split the document"
            )
        self._bin.write(tokens.astype(self.dtype, copy=False).data)
        self._sizes.write(sizes.astype("<i4").data)
        self.sequences += len(sizes)
        self.tokens += len(tokens)

    def flush(self) -> None:
        """Write all added sequences to disk (fsync)."""
        for stream in (self._bin, self._sizes):
            stream.flush()
            os.fsync(stream.fileno())

    def write_index(self) -> None:
        """Write the index of the added sequences under its hidden name. Each sequence is a document."""
        self.flush()
        sizes = map_array(hidden(self.prefix, "sizes"), "<i4")
        with open(hidden(self.prefix, "idx"), "wb") as stream:
            write_index(stream, self.dtype, sizes)
            stream.flush()
            os.fsync(stream.fileno())

    def close(self) -> None:
        """Close the files, which keep their hidden names."""
        self._bin.close()
        self._sizes.close()


def hidden(prefix: Path, suffix: str) -> Path:
    """Return the hidden name that PREFIX.suffix has until it is complete."""
    return prefix.with_name(f".{prefix.name}.{suffix}.unfinished")


def publish(prefix: Path) -> None:
    """Rename the complete files of ``prefix`` to their final names. Can be repeated after an interruption."""
    new_bin, new_idx = hidden(prefix, "bin"), hidden(prefix, "idx")
    if new_bin.exists():
        # Readers open the index first. It is removed, so that an old index never refers to new tokens.
        idx_path(prefix).unlink(missing_ok=True)
        new_bin.replace(bin_path(prefix))
    if new_idx.exists():
        new_idx.replace(idx_path(prefix))


class Journal:
    """Journal of a resumable run, next to its first output, and the locks on all its outputs.

    ``state`` is the last state that an interrupted run of the same ``job`` wrote. It is None for a new run, or if
    another job has started to write one of the outputs since, which the lock files record.
    """

    def __init__(self, prefixes: Sequence[Path], job: str):
        self._prefixes = prefixes
        self.path = journal_path(prefixes[0])
        self._job = job
        folder = prefixes[0].parent
        self._made = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self._locks = _all_locked(prefixes)
        begun_by = [lock.read() for lock in self._locks]
        self.state = self._read() if all(other == job.encode() for other in begun_by) else None
        if self.state is None:
            self.path.unlink(missing_ok=True)
        for lock in self._locks:
            lock.truncate(0)
            lock.write(job.encode())
            lock.flush()

    def _read(self) -> dict[str, Any] | None:
        if not self.path.is_file():
            return None
        try:
            saved = json.loads(regular_files.read_text(self.path))
        except (ValueError, RecursionError):
            return None
        return saved["state"] if isinstance(saved, dict) and saved.get("job") == self._job else None

    def write(self, state: dict[str, Any]) -> None:
        """Replace the saved state atomically."""
        aside = self.path.with_suffix(".new")
        with open(aside, "w") as stream:
            json.dump({"job": self._job, "state": state}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(self.path)

    def remove(self) -> None:
        """Remove the journal and the locks."""
        for prefix in self._prefixes:
            # Journals of the other prefixes are from earlier runs, whose outputs this run replaced.
            for path in (journal_path(prefix), journal_path(prefix).with_suffix(".new")):
                path.unlink(missing_ok=True)
            lock_path(prefix).unlink(missing_ok=True)
        self.close()
        with contextlib.suppress(OSError):  # the folder is not empty
            for folder in self._made:
                folder.rmdir()

    def close(self) -> None:
        """Release the locks, so that another run can resume."""
        for lock in self._locks:
            lock.close()


def journal_path(prefix: Path) -> Path:
    """Return the journal file of the run whose first output is ``prefix``."""
    return prefix.with_name(f".{prefix.name}.journal.unfinished")


def lock_path(prefix: Path) -> Path:
    """Return the file that is locked while ``prefix`` is being written."""
    return prefix.with_name(f".{prefix.name}.lock.unfinished")


def _all_locked(prefixes: Sequence[Path]) -> list[IO[bytes]]:
    locks: list[IO[bytes]] = []
    try:
        for prefix in prefixes:
            locks.append(_locked(prefix))
    except BaseException:
        for prefix, lock in zip(prefixes, locks, strict=False):
            if not lock.read():  # no interrupted run uses this output
                lock_path(prefix).unlink(missing_ok=True)
            lock.close()
        raise
    return locks


def _locked(prefix: Path) -> IO[bytes]:
    """Return the lock file, locked and open at its start.

    Raises:
        DataError: another process holds the lock.
    """
    while True:
        lock = open(lock_path(prefix), "ab+")  # noqa: SIM115  held as long as the journal
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise DataError(
                f"{prefix}: another process is writing it, expected no other — wait until it ends"
            ) from error
        except OSError as error:
            lock.close()
            raise DataError(
                f"{lock_path(prefix)}: {system_error(error)}, expected a file system with locks (flock) — write to "
                "another file system, or mount this one with locks"
            ) from error
        # A run that just ended may have removed the file between the two calls. Other runs would then lock a new file.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), lock_path(prefix).stat()):
                lock.seek(0)
                return lock
        lock.close()


def discard(prefixes: Sequence[Path]) -> None:
    """Remove the unfinished files of ``prefixes``."""
    for prefix in prefixes:
        for suffix in ("bin", "sizes", "idx"):
            hidden(prefix, suffix).unlink(missing_ok=True)


def _open_at(path: Path, length: int) -> IO[bytes]:
    """Return ``path``, truncated to ``length`` bytes and open for appending.

    Raises:
        DataError: the file is shorter.
    """
    stream = open(path, "ab")  # noqa: SIM115  its owner closes it
    found = stream.tell()
    if found < length:
        stream.close()
        raise DataError(f"{path}: {found} bytes, expected {length} as in its journal — run again from the beginning")
    stream.truncate(length)
    return stream
