"""Ends every descendant of this process, in every session: SIGTERM first, SIGKILL after the grace period."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from ascend_adapt.launch.one_host import processes
from ascend_adapt.launch.one_host.processes import Identity

GRACE_S = 10.0
SAVING_GRACE_S = 600.0
"""Grace period in seconds of a native run that saves checkpoints: at SIGTERM it finishes a step and saves."""
_KILL_WAIT_S = 10.0
_LOOK_EVERY_S = 0.02


def steps(first: int, grace: float = GRACE_S) -> list[tuple[float, int]]:
    """Return the signals and the times at which they are sent, in seconds; SIGKILL follows after ``grace``."""
    asked = [(0.0, signal.SIGTERM)]
    if first == signal.SIGINT:
        asked = [(0.0, signal.SIGINT), (grace * 3 / 4, signal.SIGTERM)]
    return [*asked, (grace, signal.SIGKILL)]


class Termination:
    """Termination in progress: call ``look()`` until it returns True.

    New descendants get the current signal as soon as they are seen, so a process cannot survive by forking.
    """

    def __init__(
        self,
        first: int,
        grace: float = GRACE_S,
        now: Callable[[], float] = time.monotonic,
        needs: Callable[[Identity, int, float], bool | None] = lambda *_: True,
    ) -> None:
        """Start; ``needs`` returns whether a process needs a signal at this time, or None to be asked again."""
        self._now, self._needs = now, needs
        self._began = now()
        self._steps = steps(first, grace)
        self._sent: dict[Identity, int] = {}
        self.left: list[Identity] = []

    def skip_grace(self) -> None:
        """Skip the grace period: send SIGKILL at the next call of look()."""
        self._steps = [(0.0, signal.SIGKILL)]

    def look(self) -> bool:
        """Send the signals that are due; return True if no process is left or nothing more can be done."""
        elapsed = self._now() - self._began
        due = [step for step, (after, _) in enumerate(self._steps) if after <= elapsed][-1]
        after, step = self._steps[due]
        self.left = processes.descendants(os.getpid())
        for one in self.left:
            number = step
            if number == signal.SIGINT and one.ignores(number):
                number = signal.SIGTERM  # Processes that a shell starts with & ignore SIGINT.
            if self._sent.get(one) == number:
                continue
            needs = number == signal.SIGKILL or self._needs(one, number, elapsed - after)
            if needs is None:
                continue
            self._sent[one] = number
            if needs:
                one.send(number)
                if number != signal.SIGKILL:
                    one.send(signal.SIGCONT)  # A stopped process would not receive the signal.
        # A process in uninterruptible sleep outlives even SIGKILL; waiting forever would hang this process too.
        return not self.left or elapsed > self._steps[-1][0] + _KILL_WAIT_S


def end_descendants(first: int = signal.SIGTERM) -> list[Identity]:
    """End and reap all descendants; return those that could not be ended."""
    ending = Termination(first)
    while not ending.look():
        time.sleep(_LOOK_EVERY_S)
        for _ in processes.reap():
            pass
    for _ in processes.reap():
        pass
    return ending.left
