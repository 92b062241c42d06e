"""A request to end that comes as a signal: heeded between steps, so that the run can save."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interruption:
    """While it is entered SIGTERM ends nothing; ``asked`` says that it has come."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interruption:
        # Python lets no other thread handle signals.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._take_note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _take_note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def leave_to_parent(_: int) -> None:
    """Ignore SIGTERM in a worker of a DataLoader: a launcher sends it to every process, and its parent is not done."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
