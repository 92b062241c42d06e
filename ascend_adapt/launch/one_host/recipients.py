"""Determines which processes of a job still need a signal that a scheduler may have already sent to each of them."""

from __future__ import annotations

import time
from pathlib import Path

from ascend_adapt.launch.one_host import processes
from ascend_adapt.launch.one_host.processes import Identity
from ascend_adapt.launch.one_host.signals import END
from ascend_adapt.whole_numbers import whole_number

SETTLE_S = 0.3
"""Seconds after which a scheduler is assumed to have signalled every process of a job."""
_RECENT_S = 2.0


class Recipients:
    """The possible recipients of a signal: the descendants of a guardian; ``job`` is the name of its job.

    ``beacons`` is the folder in which each Python process records the signals that its handlers have received.
    """

    def __init__(self, job: str, beacons: Path) -> None:
        self._job, self._beacons = job, beacons

    def needs(self, one: Identity, number: int, waited_s: float) -> bool | None:
        """Return whether to send a signal that was requested ``waited_s`` seconds ago, or None if it is too early.

        A second delivery would interrupt a signal handler during a save; without a handler it is harmless. A nested
        launcher signals its processes itself.
        """
        if self._has_own_launcher(one):
            return False
        if not one.handles(number):
            return True
        if waited_s < SETTLE_S:
            return None
        return not self._has_got(one, number)

    def _has_own_launcher(self, one: Identity) -> bool:
        job = processes.environment(one.pid).get("ASCEND_ADAPT_JOB", self._job).rpartition(".")[0]
        _, *numbers = map(whole_number, job.split("-"))
        if job == self._job or len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
            return False
        return Identity(numbers[0], numbers[1]).is_alive()

    def _has_got(self, one: Identity, number: int) -> bool:
        beacon = self._beacons / str(one.pid)
        try:
            received, changed = beacon.read_bytes(), beacon.stat().st_mtime
        except OSError:
            return False
        alike = END if number in END else (number,)  # SIGHUP and SIGTERM both request the end.
        return bool(received) and received[-1] in alike and time.time() - changed < _RECENT_S
