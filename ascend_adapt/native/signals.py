"""Signals that ask a run to save, or to save and end: responded to between steps."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any

_END = (signal.SIGTERM, signal.SIGHUP)
_NOTED = (*_END, signal.SIGUSR1, signal.SIGUSR2)
# What asks for a save reaches each rank at its own time, some after another rank has asked for the same save.
_ONE_REQUEST_S = 2.0


class SignalHandler:
    """While it is entered SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 end nothing; it notes that they have come.

    Launchers and schedulers send them to every process of a job. So they are blocked, which what is started meanwhile
    inherits, a handler would not be: a compiler that they end would end the step, and what was not saved with it.
    """

    def __init__(self, exit_signals: Iterable[str] = ()) -> None:
        """SIGTERM and SIGHUP, and the names of ``exit_signals``, ask for the end; the others for a checkpoint."""
        self._ends = {*_END, *(signal.Signals[name] for name in exit_signals)}
        self._came: set[int] = set()
        self._answered = -_ONE_REQUEST_S
        self._before: dict[int, Any] = {}
        self._blocked: set[int] = set()

    @property
    def asked_to_stop(self) -> bool:
        """Whether a signal has asked for the end."""
        self._take_pending()
        return bool(self._came & self._ends)

    @property
    def asked_to_save(self) -> bool:
        """Whether a signal has asked for a checkpoint since the last one that was asked for."""
        self._take_pending()
        if time.monotonic() - self._answered < _ONE_REQUEST_S:
            self._came &= self._ends
        return bool(self._came - self._ends)

    def forget_save_requests(self) -> None:
        """Count all requests of now, and those of the same moment that come a little later, as answered."""
        self._take_pending()
        self._came &= self._ends
        self._answered = time.monotonic()

    def __enter__(self) -> SignalHandler:
        # Python lets no other thread handle signals.
        if threading.current_thread() is threading.main_thread():
            # A thread of before does not block them; what it is given comes to the handler.
            noted = [one for one in _NOTED if one not in _END or signal.getsignal(one) is not signal.SIG_IGN]  # nohup
            self._before = {number: signal.signal(number, self._take_note) for number in noted}
            self._blocked = set(signal.pthread_sigmask(signal.SIG_BLOCK, noted))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._before:
            # What is pending comes now, and to the handler still.
            signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
            for number, before in self._before.items():
                # In a job these are ignored from the start, which Python's record does not say.
                is_harmless = number not in _END and before is signal.SIG_DFL
                signal.signal(number, signal.SIG_IGN if is_harmless else before)
            self._before = {}

    def _take_pending(self) -> None:
        while self._before and (pending := signal.sigtimedwait(self._before, 0)) is not None:
            self._came.add(pending.si_signo)

    def _take_note(self, number: int, frame: FrameType | None) -> None:
        self._came.add(number)


def leave_to_parent(_: int) -> None:
    """Ignore such signals in a worker of a DataLoader: a launcher sends them to every process; its parent continues."""
    for number in _NOTED:
        signal.signal(number, signal.SIG_IGN)
