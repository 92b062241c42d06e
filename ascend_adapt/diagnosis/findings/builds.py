"""Checks of C++ extension builds, which torch guards by a lock file."""

from __future__ import annotations

from collections.abc import Iterator

from ascend_adapt import build_locks
from ascend_adapt.diagnosis.findings.machine import Finding, Machine


def locks(machine: Machine) -> Iterator[Finding]:
    """Check for stale lock files, which torch's extension builder leaves behind if it is killed."""
    for lock in sorted(machine.extensions.glob("**/lock")):
        try:
            age_s = machine.now_s - lock.stat().st_mtime
            is_left_behind = build_locks.is_left_behind(lock)
        except FileNotFoundError:
            continue  # the build has ended meanwhile
        if is_left_behind:
            yield Finding(
                f"{lock} is {age_s / 60:.0f} minutes old, and the build that created it no longer runs",
                "every later build of this extension hangs",
                f"rm {lock}, or start jobs with ascend-run, which removes it",
                True,
            )
        else:
            yield Finding(
                f"{lock} is {age_s / 60:.0f} minutes old",
                "an extension is being compiled, here or on a host that shares the folder; jobs that need it wait",
                "wait for the build",
                False,
            )


CHECKS = (locks,)
