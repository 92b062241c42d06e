"""Save lock: only one run at a time may save into a folder, since two would overwrite each other's checkpoints."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import TextIO

from ascend_adapt import regular_files
from ascend_adapt.errors import TrainingError
from ascend_adapt.native.parallel.host_group import HostGroup
from ascend_adapt.native.parallel.mesh import Mesh

FILE = ".in-use"
PATIENCE = 65.0
"""Seconds within which every host must see what rank 0 wrote: NFS may serve a cached view up to a minute old."""
_TAKEN = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class SaveLock:
    """Lock that rank 0 of a run holds while it saves into ``folder``; released when that process ends for any reason.

    It is a POSIX lock, which NFS supports and DataLoader workers do not inherit. The lock file remains.
    """

    def __init__(self, folder: str | None, mesh: Mesh) -> None:
        self._folder = None if folder is None else Path(folder)
        self._mesh = mesh
        self._stream: TextIO | None = None

    def __enter__(self) -> list[str]:
        """Take the lock and return warnings for the log; every rank must enter the context.

        Raises:
            TrainingError: another run holds the lock, the folder is not writable, or not all ranks share the folder.
        """
        folder = self._folder
        if folder is None:
            return []
        group = HostGroup(self._mesh)
        holder = f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now().isoformat()}"
        refusal, warnings, holder = group.on_first(lambda: (*self._take(folder, holder), holder))
        if refusal is None:
            # Rank 0 must not do this: closing any handle of the file would release its POSIX lock.
            seen = group.together(lambda: _wrong_with(folder, holder) if group.rank else None)
            wrong = next((f"rank {rank} {each}" for rank, each in enumerate(seen) if each is not None), None)
            if wrong is not None:
                refusal = (
                    f"{wrong}, expected one folder that all ranks share — correct --save, or mount it on all hosts"
                )
        if refusal is not None:
            self._release()
            raise TrainingError(f"{folder}: {refusal}")
        return warnings

    def __exit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _take(self, folder: Path, holder: str) -> tuple[str | None, list[str]]:
        warnings = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stream = (folder / FILE).open("a+", encoding="utf-8")
        except OSError as error:
            return f"cannot be saved into ({error.strerror}), expected a writable folder — correct --save", []
        self._stream = stream
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                stream.seek(0)
                whose = stream.read(200).strip() or "another process"
                return f"{whose} saves there, expected no other run — end that run, or save into another folder", []
            if error.errno not in _NO_LOCKS:
                return f"cannot be saved into ({error.strerror}), expected a writable folder — correct --save", []
            warnings = [f"warning: {folder}: does not support locks, so a second run saving into it is not detected"]
        try:
            stream.truncate(0)
            os.write(stream.fileno(), holder.encode())
            os.fsync(stream.fileno())
        except OSError as error:
            return (
                f"cannot be saved into ({error.strerror}), expected a writable folder with free space — free space",
                [],
            )
        return None, warnings


def _wrong_with(folder: Path, holder: str) -> str | None:
    """Return why this rank cannot save into the folder that ``holder`` has locked, or None."""
    until = time.monotonic() + PATIENCE
    while (wrong := _not_shared(folder, holder)) is not None and time.monotonic() < until:
        time.sleep(0.5)
    if wrong is None and not os.access(folder, os.W_OK | os.X_OK):
        wrong = "cannot write there"
    return None if wrong is None else f"on {socket.gethostname()} {wrong}"


def _not_shared(folder: Path, holder: str) -> str | None:
    try:
        seen = regular_files.read_text(folder / FILE)
    except OSError as error:
        return f"does not see it ({error.strerror})"
    return None if seen == holder else "sees another folder"
