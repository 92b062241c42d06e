"""The log of one rank, on a disk that may become full while the job runs."""

from __future__ import annotations

from pathlib import Path

from ascend_adapt.errors import LaunchError


class RankLog:
    """One file; ``missing`` is the number of bytes that could not be written, ``why`` the reason."""

    def __init__(self, path: Path, append: bool) -> None:
        """Open it.

        Raises:
            LaunchError: it cannot be opened.
        """
        self.path, self.missing, self.why = path, 0, ""
        self._gap = 0
        try:
            self._file = path.open("ab" if append else "wb", buffering=0)
        except OSError as error:
            raise LaunchError(
                f"{path}: {error.strerror}, expected a file to write to — choose another folder with --log-dir"
            ) from error

    def write(self, data: bytes) -> str:
        """Append ``data``, after a line about bytes missing before it; return the problem, the first time."""
        is_first = not self.why
        if self._gap and data:
            note = f"\nascend-run: {self._gap} bytes are missing here: {self.why}\n"
            self._gap = self._gap if self._put(note.encode()) else 0
        left = len(data) if self._gap else self._put(data)
        self._gap += left
        self.missing += left
        return self.why if is_first else ""

    def _put(self, data: bytes) -> int:
        """Return how many bytes could not be written."""
        while data:
            try:
                data = data[self._file.write(data) or 0 :]
            except OSError as error:
                self.why = error.strerror or str(error)
                return len(data)
        return 0

    def close(self) -> None:
        """Close the log file."""
        try:
            self._file.close()
        except OSError as error:  # network storage may report the error only now
            self.why = self.why or error.strerror or str(error)
