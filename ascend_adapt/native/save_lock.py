"""One run at a time saves into a folder: two would write into each other's checkpoints."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path
from typing import TextIO

from ascend_adapt.errors import TrainingError
from ascend_adapt.native.host_group import HostGroup
from ascend_adapt.native.mesh import Mesh

FILE = ".in-use"
_TAKEN = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class SaveLock:
    """Held by the first rank of the run that saves into ``folder``; it goes with that process, however that ends.

    A POSIX lock, as NFS has it, and as no DataLoader worker inherits it. Its file stays.
    """

    def __init__(self, folder: str | None, mesh: Mesh) -> None:
        self._folder = None if folder is None else Path(folder)
        self._mesh = mesh
        self._stream: TextIO | None = None

    def __enter__(self) -> list[str]:
        """Take the lock, which every rank must do; return in words what could not be done.

        Raises:
            TrainingError: another run has it, or nothing can be written there.
        """
        folder = self._folder
        if folder is None:
            return []
        refusal, told = HostGroup(self._mesh).on_first(lambda: self._take(folder))
        if refusal is not None:
            self._release()
            raise TrainingError(f"{folder}: {refusal}")
        return told

    def __exit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _take(self, folder: Path) -> tuple[str | None, list[str]]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stream = (folder / FILE).open("a+", encoding="utf-8")
        except OSError as error:
            return f"cannot be saved into ({error.strerror}), expected a folder to write to — correct --save", []
        self._stream = stream
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stream.truncate(0)
            os.write(stream.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        except OSError as error:
            if error.errno in _TAKEN:
                stream.seek(0)
                whose = stream.read(200).strip() or "another process"
                return f"{whose} saves there, expected no other run — end that one, or save elsewhere", []
            if error.errno in _NO_LOCKS:
                return None, [f"warning: {folder}: has no locks, so a second run that saves there is not noticed"]
            return f"cannot be saved into ({error.strerror}), expected a folder to write to — make room", []
        return None, []
