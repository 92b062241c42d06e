"""Copies the output of ranks to the console and to one log per rank."""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_adapt.launch.one_host.console import Console
from ascend_adapt.launch.one_host.merged_streams import PATIENCE_S, MergedStreams
from ascend_adapt.launch.one_host.rank_log import RankLog

if TYPE_CHECKING:
    from ascend_adapt.launch.one_host.progress_bar import ProgressBar

_AT_ONCE = 1 << 16
_SECONDS_BETWEEN_DRAWINGS = 0.5
# Maximum time in seconds for a slow console to accept the remaining output at the end of a job.
_SLOW_CONSOLE_S = 60.0
_LOOK_S = 0.1
_MOST_NAMES = 8


class Output:
    """A thread that copies the output pipes of all ranks until every writer has closed them."""

    def __init__(self, logs: Mapping[int, Path], append: bool, bar: ProgressBar | None = None) -> None:
        # With one rank, no output of another rank can interrupt a line.
        self._console = Console(whole_lines=len(logs) > 1, bar=bar)
        self._bar = bar
        self._logs = {rank: RankLog(path, append) for rank, path in logs.items()}
        self._merged = {rank: MergedStreams() for rank in logs}
        self._selector = selectors.DefaultSelector()
        self._writers: list[int] = []
        self._copied_at = 0.0
        self._thread = threading.Thread(target=self._copy, name="output of ranks", daemon=True)

    def pipe(self, rank: int, console: int) -> int:
        """Return the write end of a pipe that replaces a rank's standard output or error."""
        reader, writer = os.pipe()
        self._selector.register(reader, selectors.EVENT_READ, (rank, console))
        self._writers.append(writer)
        return writer

    def pipe_of_bar(self, bar: ProgressBar) -> int:
        """Return the write end of a pipe from rank 0 to the progress bar; a write never blocks."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self._selector.register(reader, selectors.EVENT_READ, bar)
        self._writers.append(writer)
        return writer

    def begin(self) -> None:
        """Start copying, after all ranks have been started."""
        for writer in self._writers:
            os.close(writer)
        self._thread.start()

    def finish(self, timeout: float) -> None:
        """Wait at most a minute until all output is copied, as long as some is copied every ``timeout`` seconds.

        After that, the remaining output goes only to the logs. A pipe that a process keeps open is abandoned.
        """
        began = time.monotonic()
        while self._thread.is_alive():
            now = time.monotonic()
            if now - began > _SLOW_CONSOLE_S or now - max(began, self._copied_at, self._console.accepted_at) >= timeout:
                self._console.wait_at_most(0.0)
                break
            self._thread.join(min(_LOOK_S, timeout))
        self._thread.join(timeout)

    def _copy(self) -> None:
        drawn = time.monotonic()
        while self._selector.get_map():
            for key, _ in self._selector.select(self._pause()):
                data = os.read(key.fd, _AT_ONCE)
                if not data:
                    self._selector.unregister(key.fd)
                    os.close(key.fd)
                if self._bar is not None and key.data is self._bar:
                    self._bar.read(data)
                    continue
                rank, console = key.data
                self._log(rank, self._merged[rank].add(console, data))
                self._console.show(rank, console, data, ended=not data)
                self._copied_at = time.monotonic()
            for rank, merged in self._merged.items():
                self._log(rank, merged.overdue())
            if self._bar is not None and time.monotonic() - drawn >= _SECONDS_BETWEEN_DRAWINGS:
                self._console.draw()
                drawn = time.monotonic()
        self._console.draw(is_last=True)
        for log in self._logs.values():
            log.close()
        if incomplete := [log for log in self._logs.values() if log.why]:
            names = ", ".join(f"{log.path.name} ({log.missing} bytes missing)" for log in incomplete[:_MOST_NAMES])
            more = f" and {len(incomplete) - _MOST_NAMES} more" if len(incomplete) > _MOST_NAMES else ""
            self._console.say(f"incomplete logs in {incomplete[0].path.parent}: {names}{more}: {incomplete[0].why}")
        self._console.close()

    def _pause(self) -> float | None:
        """Return how many seconds to wait for output at most."""
        if any(merged.is_waiting for merged in self._merged.values()):
            return PATIENCE_S
        return _SECONDS_BETWEEN_DRAWINGS if self._bar is not None else None

    def _log(self, rank: int, text: bytes) -> None:
        if text and (problem := self._logs[rank].write(text)):
            path = self._logs[rank].path
            self._console.say(f"{path}: {problem}; the job continues, this log is incomplete — free space there")
