"""Limit on the number of ranks per CPU core: each rank is a Python process."""

from __future__ import annotations

import os

from ascend_adapt.errors import LaunchError

RANKS_A_CORE, ALWAYS_ALLOWED = 4, 8


def check(ranks: int, device: str) -> None:
    """Check that this host has enough cores for ``ranks``; only cores in this process's affinity mask count.

    Raises:
        LaunchError: more than 8 ranks, and more than 4 ranks per core.
    """
    cores = len(os.sched_getaffinity(0))
    most = max(ALWAYS_ALLOWED, RANKS_A_CORE * cores)
    if device.startswith(("cpu", "npu-emulated")) and ranks > most:
        raise LaunchError(
            f"{ranks} ranks on {cores} CPU cores: expected at most {most} ({RANKS_A_CORE} per core, "
            f"{ALWAYS_ALLOWED} on any host) — lower --nproc, or pass --oversubscribe"
        )
