"""Signal handler: a signal requests to save, or to save and stop, after the current step."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any

_END = (signal.SIGTERM, signal.SIGHUP)
_NOTED = (*_END, signal.SIGUSR1, signal.SIGUSR2)
# A save request may reach a rank after another rank has already voted for it.
_ONE_REQUEST_S = 2.0


class SignalHandler:
    """Context in which SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are recorded instead of ending the process.

    Launchers and schedulers send these signals to every process of a job. They are blocked because child processes
    inherit the mask but not a handler: a compiler killed by a signal would end the step before its checkpoint is saved.
    """

    def __init__(self, exit_signals: Iterable[str] = ()) -> None:
        """SIGTERM, SIGHUP and ``exit_signals`` (names) request to save and stop; the other signals request to save."""
        self._ends = {*_END, *(signal.Signals[name] for name in exit_signals)}
        self._came: set[int] = set()
        self._answered = -_ONE_REQUEST_S
        self._before: dict[int, Any] = {}
        self._blocked: set[int] = set()

    @property
    def asked_to_stop(self) -> bool:
        """Whether a signal has requested the end of the run."""
        self._take_pending()
        return bool(self._came & self._ends)

    @property
    def asked_to_save(self) -> bool:
        """Whether a signal has requested a checkpoint since the last requested checkpoint."""
        self._take_pending()
        if time.monotonic() - self._answered < _ONE_REQUEST_S:
            self._came &= self._ends
        return bool(self._came - self._ends)

    def forget_save_requests(self) -> None:
        """Mark pending save requests as handled, including late copies of the same request."""
        self._take_pending()
        self._came &= self._ends
        self._answered = time.monotonic()

    def __enter__(self) -> SignalHandler:
        # Only the main thread can set signal handlers.
        if threading.current_thread() is threading.main_thread():
            # Threads started earlier do not block the signals; a signal delivered to one of them runs the handler.
            noted = [
                one for one in _NOTED if one not in _END or signal.getsignal(one) is not signal.SIG_IGN
            ]  # ignored, as under nohup
            self._before = {number: signal.signal(number, self._record) for number in noted}
            self._blocked = set(signal.pthread_sigmask(signal.SIG_BLOCK, noted))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._before:
            # Pending signals are delivered now, while the handler is still set.
            signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
            for number, before in self._before.items():
                # A launched job ignores these signals from the start, but signal.signal returns SIG_DFL for them.
                is_harmless = number not in _END and before is signal.SIG_DFL and "ASCEND_ADAPT_JOB" in os.environ
                signal.signal(number, signal.SIG_IGN if is_harmless else before)
            self._before = {}

    def _take_pending(self) -> None:
        while self._before and (pending := signal.sigtimedwait(self._before, 0)) is not None:
            self._came.add(pending.si_signo)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._came.add(number)


def leave_to_parent(_: int) -> None:
    """Ignore these signals in a DataLoader worker: a launcher sends them to every process, and the parent continues."""
    for number in _NOTED:
        signal.signal(number, signal.SIG_IGN)
