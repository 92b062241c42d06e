"""A request to end that comes as a signal: heeded between steps, so that the run can save."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interruption:
    """While it is entered SIGTERM ends nothing; ``asked`` says that it has come.

    Launchers and schedulers send it to every process of a job. So it is blocked, which what is started meanwhile
    inherits, a handler would not be: a compiler that it ends would end the step, and what was not saved with it.
    """

    def __init__(self) -> None:
        self._has_come = False
        self._before: Any = None
        self._blocked: set[int] = set()

    @property
    def asked(self) -> bool:
        """Whether SIGTERM has come."""
        return self._has_come or (self._before is not None and signal.SIGTERM in signal.sigpending())

    def __enter__(self) -> Interruption:
        # Python lets no other thread handle signals.
        if threading.current_thread() is threading.main_thread():
            # A thread of before does not block it; what it is given comes to the handler.
            self._before = signal.signal(signal.SIGTERM, self._take_note)
            self._blocked = set(signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._before is not None:
            # What is pending comes now, and to the handler still.
            signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
            before, self._before = self._before, None
            signal.signal(signal.SIGTERM, before)

    def _take_note(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True


def leave_to_parent(_: int) -> None:
    """Ignore SIGTERM in a worker of a DataLoader: a launcher sends it to every process, and its parent is not done."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
