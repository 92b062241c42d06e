"""Ctrl-C, SIGTERM and SIGHUP end a command in one way: as an exception, so that nothing unfinished remains."""

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

_Handler = Any  # what signal.getsignal returns
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ANNOUNCING = (signal.SIGUSR1, signal.SIGUSR2)
_CLEANING_S = 30.0
"""Time for cleaning up, during which further signals are ignored."""


class Interrupted(KeyboardInterrupt):
    """One of the signals; ``number`` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_code(stopped: KeyboardInterrupt) -> int:
    """Return the exit code that a shell reports for a process which such a signal ended."""
    return 128 + (stopped.number if isinstance(stopped, Interrupted) else signal.SIGINT)


@contextlib.contextmanager
def as_exception() -> Iterator[None]:
    """Context in which each of the signals raises Interrupted; after that, the process is expected to end.

    Cleaning up must not be interrupted: an interrupted join marks its thread as finished, and Python never exits.
    Signals that the caller ignores, as nohup and ``&`` do, stay ignored. SIGUSR1 and SIGUSR2, by which a scheduler
    announces the end of a job, would end a command at once: they have no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raised: float | None = None

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        # Not forever: an extension module may swallow the exception.
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
    """Context in which the signals are ignored: for a few milliseconds that must not be interrupted."""
    # Not SIG_IGN: Python reports an error for a pending signal without a handler.
    before = _handle(lambda number, frame: None)
    try:
        yield
    finally:
        _restore(before)


def run(command: Sequence[str], *, env: Mapping[str, str] | None = None, stdout: int | IO[bytes] | None = None) -> int:
    """Run a command to its end and return its exit code; an interruption sends its group SIGTERM and waits for it.

    It has a session of its own, since Ctrl-C reaches every process of a terminal's session: with the SIGTERM from here
    that would be two signals, by which a launcher is asked to skip its grace period.
    """
    with subprocess.Popen(command, env=env, stdout=stdout, start_new_session=True) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The group may have ended by now: a scheduler signals every process of a job.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(_CLEANING_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
            raise


def _handle(handler: _Handler) -> dict[int, _Handler]:
    """Install a handler of the signals that are not ignored, and return those before it."""
    present: dict[int, _Handler] = {number: signal.getsignal(number) for number in _SIGNALS}
    before = {number: one for number, one in present.items() if one not in (signal.SIG_IGN, None)}
    _restore(dict.fromkeys(before, handler))
    return before


def _restore(handlers: dict[int, _Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
