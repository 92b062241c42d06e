"""Progress bar of a native run, on the last line of the terminal; rank 0 sends one JSON line per step by a pipe."""

from __future__ import annotations

import io
import json
from typing import Any

from rich.console import Console as Painter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_NARROWEST = 20
_ERASE = b"\x1b[2K"


class ProgressBar:
    """Renders the progress bar; the cursor is left at the start of the line, so other text overwrites the bar."""

    def __init__(self) -> None:
        self._bar = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            expand=True,
        )
        self._task: Any = None
        self._read = b""

    def read(self, data: bytes) -> None:
        """Read JSON lines from rank 0 with the keys iteration, iterations, lm_loss and samples_per_s."""
        *lines, self._read = (self._read + data).split(b"\n")
        if not lines:
            return
        step = json.loads(lines[-1])
        speed = f"loss {step['lm_loss']:.4g}, {step['samples_per_s']:.3g} samples/s"
        done, of = step["iteration"], step["iterations"]
        if self._task is None:
            # After a resume, the speed is counted from the resumed iteration.
            self._task = self._bar.add_task("", total=of, completed=done, speed=speed)
        self._bar.update(self._task, completed=done, total=of, speed=speed)

    def drawn(self, width: int) -> bytes:
        """Return the bytes that draw the bar on a terminal of ``width`` columns; none before the first step."""
        if self._task is None or width < _NARROWEST:
            return b""
        painted = io.StringIO()
        # The last column stays free, because a full line would wrap.
        painter = Painter(file=painted, force_terminal=True, width=width - 1, legacy_windows=False)
        painter.print(self._bar.get_renderable(), end="")
        return _ERASE + painted.getvalue().split("\n")[0].encode() + b"\r"

    def erased(self) -> bytes:
        """Return the bytes that erase the bar."""
        return b"" if self._task is None else b"\r" + _ERASE
