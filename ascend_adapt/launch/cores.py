"""CPU cores of this host: the maximum number of ranks, and the number of threads per rank."""

from __future__ import annotations

import os
from pathlib import Path

from ascend_adapt.errors import LaunchError

RANKS_A_CORE, ALWAYS_ALLOWED = 4, 8


def check(ranks: int, device: str) -> None:
    """Check that this host has enough cores for ``ranks``; only cores in this process's affinity mask count.

    Raises:
        LaunchError: there are more than 8 ranks, and more than 4 ranks per core.
    """
    cores = len(os.sched_getaffinity(0))
    most = max(ALWAYS_ALLOWED, RANKS_A_CORE * cores)
    if device.startswith(("cpu", "npu-emulated")) and ranks > most:
        raise LaunchError(
            f"{ranks} ranks on {cores} CPU cores: expected at most {most} ({RANKS_A_CORE} per core, "
            f"but at least {ALWAYS_ALLOWED}) — lower --nproc, or pass --oversubscribe"
        )


def threads_per_rank(nproc: int) -> int:
    """Return the number of threads per rank: an even share of the physical cores among ``nproc`` ranks.

    torch's default also counts physical cores. OpenMP threads spin for a while after their work. With one
    thread per hardware thread, they take time from the thread that launches the kernels of a GPU or NPU.
    """
    return max(_physical_cores() // nproc, 1)


def _physical_cores() -> int:
    """Return the number of physical cores in this process's affinity mask."""
    return len({_siblings(cpu) for cpu in os.sched_getaffinity(0)})


def _siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)  # A sandbox may hide the topology.
