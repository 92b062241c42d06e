"""Turns Ctrl-C, SIGTERM and SIGHUP into an exception, so that a command leaves nothing unfinished."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import IO, Any

_Handler = Any  # the type that signal.getsignal returns
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ANNOUNCING = (signal.SIGUSR1, signal.SIGUSR2)
_CLEANING_S = 30.0
"""Time for cleanup, during which further signals are ignored."""


class Interrupted(KeyboardInterrupt):
    """Raised by one of the signals; ``number`` is the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_code(stopped: KeyboardInterrupt) -> int:
    """Return the exit code that a shell reports for a process that this signal ended."""
    return 128 + (stopped.number if isinstance(stopped, Interrupted) else signal.SIGINT)


@contextlib.contextmanager
def as_exception() -> Iterator[None]:
    """Context in which each of the signals raises Interrupted. After that, the process is expected to end.

    Cleanup must not be interrupted: an interrupted join marks its thread as finished, and Python never exits.
    Signals that the caller ignores, as nohup and ``&`` do, stay ignored. SIGUSR1 and SIGUSR2, with which a scheduler
    announces the end of a job, have no effect; by default they would end the command at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raised: float | None = None

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        # Signals are ignored for a limited time only, because an extension module may swallow the exception.
        if raised is None or time.monotonic() - raised >= _CLEANING_S:
            raised = time.monotonic()
            raise Interrupted(number)

    before = _handle(handler)
    announced = [number for number in _ANNOUNCING if signal.getsignal(number) is signal.SIG_DFL]
    _restore(dict.fromkeys(announced, lambda number, frame: None))
    try:
        yield
    finally:
        _restore(dict.fromkeys(announced, signal.SIG_DFL))
        # Python restores its own handlers as it exits, and a signal would then print a traceback.
        _restore(before if raised is None else dict.fromkeys(before, signal.SIG_IGN))


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """Context in which the signals are ignored, for a few milliseconds that must not be interrupted."""
    # With SIG_IGN, Python would report an error for a pending signal, which then has no handler.
    before = _handle(lambda number, frame: None)
    try:
        yield
    finally:
        _restore(before)


def run(command: Sequence[str], *, env: Mapping[str, str] | None = None, stdout: int | IO[bytes] | None = None) -> int:
    """Run a command to its end and return its exit code. On interruption, send SIGTERM to its group and wait for it.

    The command runs in a new session. Otherwise it would get two signals: Ctrl-C, which reaches every process of a
    terminal's session, and this SIGTERM. A launcher takes two signals as a request to skip its grace period.
    """
    with subprocess.Popen(command, env=env, stdout=stdout, start_new_session=True) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The group may have ended already, because a scheduler signals every process of a job.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(_CLEANING_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
            raise


def _handle(handler: _Handler) -> dict[int, _Handler]:
    """Install a handler for the signals that are not ignored, and return the previous handlers."""
    present: dict[int, _Handler] = {number: signal.getsignal(number) for number in _SIGNALS}
    before = {number: one for number, one in present.items() if one not in (signal.SIG_IGN, None)}
    _restore(dict.fromkeys(before, handler))
    return before


def _restore(handlers: dict[int, _Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
