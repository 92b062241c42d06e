"""Merges a rank's standard output and standard error into one text without cutting lines in two."""

from __future__ import annotations

import time

PATIENCE_S = 0.1
"""Maximum time in seconds for which text of one stream waits until the other stream ends its line."""

_MOST_WAITING = 1 << 16
_LINE_ENDS = (b"\n", b"\r")


class MergedStreams:
    """The two streams of one rank.

    An unbuffered ``print`` (PYTHONUNBUFFERED) writes its text and its line end separately. Text that the other
    stream writes in between waits for the line end. A line that stays unfinished, such as a progress bar, only delays
    the other stream by ``PATIENCE_S``.
    """

    def __init__(self) -> None:
        self._unfinished: int | None = None  # The stream whose unfinished line ends the merged text.
        self._waiting: dict[int, bytes] = {}
        self._since = 0.0
        self._ended: set[int] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether text waits for the end of another stream's line."""
        return bool(self._waiting)

    def add(self, stream: int, data: bytes) -> bytes:
        """Add ``data`` of ``stream`` (empty at its end), and return the text that may be written now."""
        if not data:
            self._ended.add(stream)
        if self._unfinished in (None, stream):
            return self._appended(stream, data) + (self._released() if self._unfinished is None else b"")
        if data:
            self._since = self._since if self._waiting else time.monotonic()
            self._waiting[stream] = self._waiting.get(stream, b"") + data
        return self._released() if len(self._waiting.get(stream, b"")) > _MOST_WAITING else b""

    def overdue(self) -> bytes:
        """Return the text that has waited for ``PATIENCE_S``."""
        return self._released() if self._waiting and time.monotonic() - self._since >= PATIENCE_S else b""

    def _appended(self, stream: int, data: bytes) -> bytes:
        # Nothing ends the unfinished line of a stream that has ended.
        self._unfinished = None if data.endswith(_LINE_ENDS) or stream in self._ended else stream
        return data

    def _released(self) -> bytes:
        waiting, self._waiting = self._waiting, {}
        return b"".join(self._appended(stream, data) for stream, data in waiting.items())
