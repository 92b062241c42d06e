"""Passes on what ranks print, to the console as it comes and to one log for each rank."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ascend_adapt.launch.progress_bar import ProgressBar

STDOUT, STDERR = 1, 2
_AT_ONCE = 1 << 16
_SECONDS_BETWEEN_DRAWINGS = 0.5


class Console:
    """Writes what several sources print, none of whose lines is to be cut in two by another's, nor by a ``bar``."""

    def __init__(self, whole_lines: bool, bar: ProgressBar | None = None) -> None:
        self._whole_lines, self._bar = whole_lines or bar is not None, bar
        self._held: dict[tuple[Hashable, int], bytes] = {}

    def show(self, source: Hashable, console: int, data: bytes, ended: bool = False) -> None:
        """Write ``data`` of a source to STDOUT or STDERR; an unfinished line waits for its end, or the source's."""
        text = self._held.pop((source, console), b"") + data
        if self._whole_lines and not ended and len(text) < _AT_ONCE:
            end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
            text, self._held[source, console] = text[:end], text[end:]
        if self._bar is not None and text:
            line_end = b"" if text.endswith((b"\n", b"\r")) else b"\n"
            _write(STDERR, self._bar.erased())
            _write(console, text + line_end)
            self.draw()
        else:
            _write(console, text)

    def draw(self, *, is_last: bool = False) -> None:
        """Draw the bar, if there is one, as it is now; the last stays."""
        if self._bar is not None:
            with contextlib.suppress(OSError):
                drawn = self._bar.drawn(os.get_terminal_size(STDERR).columns)
                _write(STDERR, drawn + b"\n" if drawn and is_last else drawn)


def _write(console: int, text: bytes) -> None:
    while text:
        try:
            text = text[os.write(console, text) :]
        except OSError:
            return  # the console is gone (a closed terminal, `| head`); the logs are not


class Output:
    """One thread that copies the pipes of all ranks until every writer has closed them."""

    def __init__(self, logs: Mapping[int, Path], append: bool, bar: ProgressBar | None = None) -> None:
        # With one rank nobody's line can be cut in two by another's.
        self._console = Console(whole_lines=len(logs) > 1, bar=bar)
        self._bar = bar
        self._logs = {rank: path.open("ab" if append else "wb", buffering=0) for rank, path in logs.items()}
        self._selector = selectors.DefaultSelector()
        self._writers: list[int] = []
        self._thread = threading.Thread(target=self._copy, name="output of ranks", daemon=True)

    def pipe(self, rank: int, console: int) -> int:
        """Return what a rank may write to instead of the console's STDOUT or STDERR."""
        reader, writer = os.pipe()
        self._selector.register(reader, selectors.EVENT_READ, (rank, console))
        self._writers.append(writer)
        return writer

    def pipe_of_bar(self, bar: ProgressBar) -> int:
        """Return what rank 0 may tell a bar through; a write never waits."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._selector.register(reader, selectors.EVENT_READ, bar)
        self._writers.append(writer)
        return writer

    def begin(self) -> None:
        """Copy from now on; all ranks have been started."""
        for writer in self._writers:
            os.close(writer)
        self._thread.start()

    def finish(self, timeout: float) -> None:
        """Wait until all has been passed on, or until ``timeout`` where somebody keeps a pipe open."""
        self._thread.join(timeout)

    def _copy(self) -> None:
        pause, drawn = _SECONDS_BETWEEN_DRAWINGS if self._bar is not None else None, time.monotonic()
        while self._selector.get_map():
            for key, _ in self._selector.select(pause):
                data = os.read(key.fd, _AT_ONCE)
                if not data:
                    self._selector.unregister(key.fd)
                    os.close(key.fd)
                if self._bar is not None and key.data is self._bar:
                    self._bar.read(data)
                    continue
                rank, console = key.data
                # A full disk must not stop the rank: what cannot be kept is at least shown.
                with contextlib.suppress(OSError):
                    self._logs[rank].write(data)
                self._console.show(rank, console, data, ended=not data)
            if pause is not None and time.monotonic() - drawn >= pause:
                self._console.draw()
                drawn = time.monotonic()
        self._console.draw(is_last=True)
        for log in self._logs.values():
            log.close()
