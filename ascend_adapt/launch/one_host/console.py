"""Writes to the launcher's standard output and error, which may be slow, non-blocking, closed or on a full disk.

The job continues in all of these cases.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Hashable
from typing import TYPE_CHECKING

from ascend_adapt.launch.one_host.repeated_warnings import RepeatedWarnings

if TYPE_CHECKING:
    from ascend_adapt.launch.one_host.progress_bar import ProgressBar

STDOUT, STDERR = 1, 2
PATIENCE_S = 60.0
"""Maximum time in seconds for which ranks wait for a blocked console; after that, output goes only to the logs."""

_NAMES = {STDOUT: "standard output", STDERR: "standard error"}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LONGEST_LINE = 1 << 16
_SAY_PATIENCE_S = 2.0
_LOOK_MS = 100
_LINE_END = ord("\n")


def say(text: str) -> None:
    """Print a message of ascend-run to standard error, blocking for at most two seconds."""
    _Stream(STDERR, _SAY_PATIENCE_S).write(os.fsencode(f"ascend-run: {text}\n"))


class Console:
    """Writes the output of several sources without mixing their lines with each other or with a progress bar.

    If no byte is accepted for ``patience_s`` seconds, output is dropped until the console accepts bytes again; one line
    then reports how many are missing. The console also stops waiting when the descriptor ``signals`` is readable.
    """

    def __init__(
        self,
        whole_lines: bool,
        bar: ProgressBar | None = None,
        patience_s: float = PATIENCE_S,
        signals: int | None = None,
    ) -> None:
        self._whole_lines, self._bar = whole_lines or bar is not None, bar
        self._held: dict[tuple[Hashable, int], bytes] = {}
        self._repeated = RepeatedWarnings()
        self._streams = {number: _Stream(number, patience_s, signals) for number in (STDOUT, STDERR)}

    @property
    def accepted_at(self) -> float:
        """Monotonic time at which the console last accepted a byte."""
        return max(stream.accepted_at for stream in self._streams.values())

    def show(self, source: Hashable, console: int, data: bytes, ended: bool = False) -> None:
        """Write ``data`` of a source to STDOUT or STDERR; hold an unfinished line until the line or the source ends."""
        text = self._held.pop((source, console), b"") + data
        if self._whole_lines and not ended and len(text) < _LONGEST_LINE:
            end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
            text, self._held[source, console] = text[:end], text[end:]
        if self._whole_lines and console == STDERR:
            text = self._repeated.removed_from(source, text)
        if self._bar is not None and text:
            line_end = b"" if text.endswith((b"\n", b"\r")) else b"\n"
            self._write(STDERR, self._bar.erased())
            self._write(console, text + line_end)
            self.draw()
        else:
            self._write(console, text)

    def say(self, text: str) -> None:
        """Print a message of ascend-run between the lines of the sources."""
        self.show("ascend-run", STDERR, os.fsencode(f"ascend-run: {text}\n"))

    def draw(self, *, is_last: bool = False) -> None:
        """Draw the current progress bar, if there is one; the last bar stays on the terminal."""
        if self._bar is not None:
            with contextlib.suppress(OSError):
                drawn = self._bar.drawn(os.get_terminal_size(STDERR).columns)
                self._write(STDERR, drawn + b"\n" if drawn and is_last else drawn)

    def wait_at_most(self, patience_s: float) -> None:
        """Set the maximum wait for a blocked console, in seconds; may be called from another thread."""
        for stream in self._streams.values():
            stream.patience_s = patience_s

    def close(self) -> None:
        """Print how many repeated warnings were omitted, and how many bytes each stream is missing."""
        if self._repeated.count:
            self._write(STDERR, _line(f"{self._repeated.count} repeated warnings appear only in the logs of the ranks"))
        for number, stream in self._streams.items():
            if stream.missing_in_all:
                self._other(number).write(_line(f"{_NAMES[number]} misses {stream.missing_in_all} bytes, {_KEPT}"))

    def _write(self, number: int, text: bytes) -> None:
        if problem := self._streams[number].write(text):
            self._other(number).write(_line(f"{_NAMES[number]}: {problem}; the job continues, {_KEPT}"))

    def _other(self, number: int) -> _Stream:
        return self._streams[STDERR if number == STDOUT else STDOUT]


_KEPT = "see the logs of the ranks"


def _line(text: str) -> bytes:
    return os.fsencode(f"ascend-run: {text}\n")


class _Stream:
    """One output descriptor; ``missing_in_all`` counts the bytes that it did not accept, unless its reader is gone."""

    def __init__(self, descriptor: int, patience_s: float, signals: int | None = None) -> None:
        self.patience_s, self.accepted_at, self.missing_in_all = patience_s, 0.0, 0
        self._descriptor, self._missing, self._at_line_start = descriptor, 0, b""
        self._is_gone = self._has_failed = False
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        if signals is not None:
            self._poll.register(signals, select.POLLIN)

    def write(self, text: bytes) -> str:
        """Write as much of ``text`` as is accepted; on a full disk, return the problem the first time."""
        if self._missing and text:
            note = self._at_line_start + _line(f"{self._missing} bytes are missing here, {_KEPT}")
            left, problem = self._put(note, 0.0)
            if left:
                self._count(len(text))
                return problem
            self._missing = 0
        left, problem = self._put(text, self.patience_s)
        self._count(left)
        return problem

    def _count(self, missing: int) -> None:
        self._missing += missing
        self.missing_in_all += missing

    def _put(self, text: bytes, patience_s: float) -> tuple[int, str]:
        """Return the number of bytes that were not accepted, and the problem."""
        if self._is_gone:
            return 0, ""
        view, waited_since = memoryview(text), time.monotonic()
        while view:
            try:
                # Writing so few bytes never blocks when poll() reports room, even on a blocking descriptor.
                ready = {number for number, _ in self._poll.poll(_LOOK_MS if patience_s else 0)}
                if self._descriptor in ready:
                    accepted = os.write(self._descriptor, view[: select.PIPE_BUF])
                    self._at_line_start = b"" if view[accepted - 1] == _LINE_END else b"\n"
                    view = view[accepted:]
                    waited_since = self.accepted_at = time.monotonic()
                    continue
                if ready:
                    return len(view), ""
            except BlockingIOError:
                time.sleep(_LOOK_MS / 1000)  # Some devices report room in poll() that they do not have.
            except OSError as error:
                if error.errno in _FULL:
                    problem, self._has_failed = "" if self._has_failed else str(error.strerror), True
                    return len(view), problem
                # The terminal is closed, or a reader such as `head` has exited; the job continues, as under nohup.
                self._is_gone = True
                return 0, ""
            if time.monotonic() - waited_since >= min(patience_s, self.patience_s):
                return len(view), ""
        return 0, ""
