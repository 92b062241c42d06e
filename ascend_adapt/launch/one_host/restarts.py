"""`--max-restarts`: restarts a job after a failure."""

from __future__ import annotations

from collections.abc import Callable

from ascend_adapt.launch.one_host.console import say


def run_with_restarts(
    attempt: Callable[[int], int], *, at_most: int, is_stopped: Callable[[], bool]
) -> tuple[int, int]:
    """Run attempts until one succeeds, the job is stopped, or ``at_most`` restarts have failed.

    ``attempt`` takes the number of the attempt, from 0 on, and returns an exit code. Return the last exit code and the
    number of restarts.
    """
    code, restarts = attempt(0), 0
    while code and restarts < at_most and not is_stopped():
        restarts += 1
        say(f"restart {restarts} of {at_most}")
        code = attempt(restarts)
    return code, restarts
