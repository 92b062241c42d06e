"""`ascend-adapt stop`: ends one job on this host, and no other."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.one_host.run_directory import Job, RunDirectory, boot_id
from ascend_adapt.launch.one_host.termination import GRACE_S

_LOOK_EVERY_S = 0.05


def stop(folder: Path) -> str:
    """End the job of a run directory, wait until it has ended, and return its outcome in words.

    If each host has its own launcher, those of this host are ended; the others end when their collectives fail.

    Raises:
        LaunchError: the folder is not a run directory, its job runs on another host, or the job does not end.
    """
    run_dir = RunDirectory(folder)
    here = [found for one in run_dir.of_all_nodes() if one.job.exists() and (found := Job.read(one))[0].is_alive()]
    if len(here) > 1:
        return ", ".join(sorted({_stopped(folder, job, written) for job, written in here}))
    return _stopped(folder, *(here[0] if here else Job.read(run_dir)))


def _stopped(folder: Path, job: Job, written: Mapping[str, Any]) -> str:
    if job.host != socket.gethostname():
        raise LaunchError(f"{folder}: its job runs on {job.host}, this is {socket.gethostname()} — stop it there")
    if job.boot != boot_id():
        return "had ended before this host was restarted"
    alive = [one for one in (job.launcher, job.guardian) if one.is_alive()]
    if not alive:
        return f"had already ended, with exit code {written.get('exit_code', 'unknown')}"
    alive[0].send(signal.SIGTERM)
    patience_s = 2 * GRACE_S + written.get("grace", GRACE_S)
    deadline = time.monotonic() + patience_s
    while any(one.is_alive() for one in alive):
        if time.monotonic() > deadline:
            pids = ", ".join(str(one.pid) for one in alive if one.is_alive())
            raise LaunchError(
                f"{folder}: pids {pids} are still running after {patience_s:.0f} s — "
                "see what they wait for: ps -o pid,wchan"
            )
        time.sleep(_LOOK_EVERY_S)
    return "ended"
