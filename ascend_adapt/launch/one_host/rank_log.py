"""The log file of one rank; its disk may become full while the job runs."""

from __future__ import annotations

from pathlib import Path

from ascend_adapt.errors import LaunchError


class RankLog:
    """Log file of a rank; ``missing`` is the number of bytes that could not be written, and ``why`` is the reason."""

    def __init__(self, path: Path, append: bool) -> None:
        """Open the log file.

        Raises:
            LaunchError: the file cannot be opened.
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
        """Append ``data``, after a line about missing bytes, if any; return a problem the first time it occurs."""
        is_first = not self.why
        if self._gap and data:
            note = f"\nascend-run: {self._gap} bytes are missing here: {self.why}\n"
            self._gap = self._gap if self._put(note.encode()) else 0
        left = len(data) if self._gap else self._put(data)
        self._gap += left
        self.missing += left
        return self.why if is_first else ""

    def _put(self, data: bytes) -> int:
        """Return the number of bytes that could not be written."""
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
        except OSError as error:  # Network storage may report the error only at close().
            self.why = self.why or error.strerror or str(error)
