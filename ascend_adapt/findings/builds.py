"""C++ extensions that torch builds behind a lock file."""

from __future__ import annotations

from collections.abc import Iterator

from ascend_adapt import probe
from ascend_adapt.findings.machine import Finding, Machine

# Another user's processes and other hosts cannot be seen; no operator takes longer to compile.
_STALE_AFTER_S = 600


def locks(machine: Machine) -> Iterator[Finding]:
    """Locks of torch's extension builder, which deletes its own unless it was killed."""
    for lock in sorted(machine.extensions.glob("**/lock")):
        try:
            age_s = machine.now_s - lock.stat().st_mtime
        except FileNotFoundError:
            continue  # the build has just ended
        builders = probe.processes_that_hold(lock)
        what = f"{lock} is {age_s / 60:.0f} minutes old"
        if builders:
            yield Finding(
                f"{what}, held by process {', '.join(map(str, builders))}",
                "an operator is being compiled; jobs that need it wait",
                "wait for it",
                False,
            )
        elif age_s > _STALE_AFTER_S:
            yield Finding(
                f"{what}, and no process here holds it",
                "a killed build leaves its lock, and every later build of the same operator waits for ever",
                f"rm {lock}, unless another host that shares this folder is compiling",
                True,
            )
        else:
            yield Finding(
                f"{what}, and no process that this user can see holds it",
                "another host or user may be compiling, or a killed build has left it",
                f"rm {lock} if nothing is being compiled",
                False,
            )


CHECKS = (locks,)
