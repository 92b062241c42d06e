"""Signals that a job handles; distinguishes a new request from a repetition of an earlier one.

A scheduler signals every process of a job at once, so one request reaches a guardian several times: directly, through
its parent (the launcher or agent), and through the launcher on another host.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from enum import IntEnum

END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end the job."""
PASSED = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are passed to the processes that handle them; the job continues."""
HANDLED = (*END, *PASSED)
TIME_TO_SAVE = (signal.SIGTERM, signal.SIGHUP)
"""Signals after which the full ``--grace`` period applies, because nobody is waiting at a terminal."""
NOT_WAITED_FOR = signal.SIGKILL
"""Signal that makes a guardian end the job, with at most the default grace: the launcher is gone, or a host failed."""

_TYPED = (signal.SIGINT, signal.SIGQUIT)
# srun forwards signals that slurmstepd has already sent to every process; systemd can send SIGHUP right after SIGTERM.
_REPEAT_S = 2.0
# timeout(1) signals its child and then its process group. Nobody types Ctrl-C twice as fast.
_TYPED_REPEAT_S = 0.2


class Source(IntEnum):
    """The process that informs a guardian of a signal."""

    GUARDIAN = 0
    PARENT = 1
    """The guardian's parent: the launcher or the agent."""
    LAUNCHER = 2
    """The launcher of a job on several hosts."""


class Requests:
    """The requests (signals) that one process has received."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.stop: int | None = None
        """The first signal that requested the end of the job."""
        self.skips_grace = False
        """Whether a second request skips the grace period."""
        self._now = now
        self._first: dict[Source, tuple[int, float]] = {}
        self._passed: dict[int, float] = {}

    def to_end(self, number: int, source: Source) -> None:
        """Count a request to end the job. A signal to the same process, some time later, is a second request."""
        earlier = self._first.get(source)
        if earlier is None:
            self._first[source] = (number, self._now())
        if self.stop is None:
            self.stop = number
        elif number == NOT_WAITED_FOR or (earlier is not None and not self._repeats(number, source, *earlier)):
            self.skips_grace = True

    def is_new(self, number: int) -> bool:
        """Return whether a signal of ``PASSED`` is a new request, whichever process received it."""
        now = self._now()
        if now - self._passed.get(number, -_REPEAT_S) < _REPEAT_S:
            return False
        self._passed[number] = now
        return True

    def _repeats(self, number: int, source: Source, first: int, since: float) -> bool:
        passed_s = self._now() - since
        if number in _TYPED and source != Source.GUARDIAN:  # The guardian has a separate session without a terminal.
            return number == first and passed_s < _TYPED_REPEAT_S
        return passed_s < _REPEAT_S


def outlive_passed() -> None:
    """Ignore SIGUSR1 and SIGUSR2 until the job has begun, because there is no process yet to pass them to."""
    for number in PASSED:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda *_: None)


def restore_defaults() -> None:
    """Restore the default handling of signals that this process inherited as ignored, for example from a transport.

    Ranks would inherit the ignored signals, and would not end before SIGKILL.
    """
    for number in HANDLED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def listen(others: Iterable[int] = ()) -> int:
    """Return a descriptor from which the number of each received signal can be read, one byte per signal.

    A signal that is ignored when this process starts stays ignored.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (*HANDLED, *others):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # The descriptor carries the number of the signal.
    return reader
