"""How many ranks a CPU may be asked for without a question: each is a Python process of its own."""

from __future__ import annotations

import os

from ascend_adapt.errors import LaunchError

RANKS_A_CORE, ALWAYS_ALLOWED = 4, 8


def check(ranks: int, device: str) -> None:
    """Check that the cores of this machine which this process may use are enough.

    Raises:
        LaunchError: more than 4 ranks a core, and more than 8.
    """
    cores = len(os.sched_getaffinity(0))
    most = max(ALWAYS_ALLOWED, RANKS_A_CORE * cores)
    if device.startswith(("cpu", "npu-emulated")) and ranks > most:
        raise LaunchError(
            f"{ranks} ranks on a CPU of {cores} cores: expected at most {most} ({RANKS_A_CORE} a core, "
            f"{ALWAYS_ALLOWED} on any machine) — lower --nproc, or give --oversubscribe"
        )
