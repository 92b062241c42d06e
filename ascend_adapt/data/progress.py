"""Progress display of preprocess: a bar on a terminal, otherwise a line at intervals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from ascend_adapt.data.preprocessing import DocumentProgress

SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def progress_display(stream: TextIO) -> Iterator[Callable[[DocumentProgress], None]]:
    """Yield a function that displays each DocumentProgress on ``stream``."""
    if stream.isatty():
        yield from _bar(stream)
    else:
        yield _Lines(stream).show


def _bar(stream: TextIO) -> Iterator[Callable[[DocumentProgress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    speed = _Speed()
    with Bar(*columns, console=Console(file=stream)) as bar:
        task = bar.add_task("", total=None)

        def show(progress: DocumentProgress) -> None:
            bar.update(
                task,
                total=progress.bytes_total or None,
                completed=progress.bytes_read,
                description=f"{progress.counts.documents} documents, {speed.of(progress):.2f} MB/s, {progress.engine}",
            )

        yield show


class _Lines:
    def __init__(self, stream: TextIO):
        self._stream = stream
        self._speed = _Speed()
        self._next = time.monotonic() + SECONDS_BETWEEN_LINES
        self._said_resumed = False

    def show(self, progress: DocumentProgress) -> None:
        if progress.resumed and not self._said_resumed:
            self._said_resumed = True
            print(f"resuming after document {progress.counts.documents}", file=self._stream, flush=True)
        speed = self._speed.of(progress)
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SECONDS_BETWEEN_LINES
        left = self._speed.seconds_left(progress)
        print(
            f"{progress.counts.documents} documents, {progress.counts.text_bytes / 1e6:.1f} MB, {speed:.2f} MB/s, "
            f"{'time left unknown' if left is None else f'{left:.0f} s left'}, engine {progress.engine}",
            file=self._stream,
            flush=True,
        )


class _Speed:
    """Speed since the start of this process, without the work of the interrupted run that it resumes."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._text: int | None = None
        self._read = 0

    def of(self, progress: DocumentProgress) -> float:
        """Return the speed in MB of JSON lines per second."""
        if self._text is None:
            self._text, self._read = (progress.counts.text_bytes, progress.bytes_read) if progress.resumed else (0, 0)
        return (progress.counts.text_bytes - self._text) / 1e6 / self._seconds()

    def seconds_left(self, progress: DocumentProgress) -> float | None:
        """Return the estimated seconds left, or None if the size of the input is unknown."""
        done = progress.bytes_read - self._read
        if not progress.bytes_total or done <= 0:
            return None
        return (progress.bytes_total - progress.bytes_read) / done * self._seconds()

    def _seconds(self) -> float:
        return max(time.monotonic() - self._started, 1e-6)
