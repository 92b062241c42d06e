"""Lock files of torch's extension builder: detects and removes locks whose process has ended.

torch creates empty lock files. This module writes the host's boot id and the builder's PID namespace, process id and
start time into them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from ascend_adapt import probe, regular_files

# Without a record, the builder may be on another host or in another container. No compiler call takes longer than this.
SILENT_AFTER_S = 600


def sign(lock: Path) -> None:
    """Record in a lock that this process has just created it."""
    lock.write_text(" ".join((*_place(), str(os.getpid()), _start_of(os.getpid()))))


def is_left_behind(lock: Path) -> bool:
    """Return whether the process that created ``lock`` has ended.

    A lock without a record counts as left behind if nothing in its folder has changed for ``SILENT_AFTER_S``.
    """
    try:
        record = regular_files.read_text(lock, errors="replace").split()
        if len(record) == 4 and tuple(record[:2]) == _place():
            return _start_of(int(record[2])) != record[3]
        return not probe.processes_that_hold(lock) and silent_s(lock) > SILENT_AFTER_S
    except (OSError, ValueError):
        return False  # the lock was released meanwhile, or its record is still being written


def silent_s(lock: Path) -> float:
    """Return the seconds since the last change in the build folder."""
    newest = max(path.stat().st_mtime for path in (lock, *lock.parent.iterdir()))
    return time.time() - newest


def remove(lock: Path) -> None:
    """Remove a stale lock, unless another process has created it again meanwhile."""
    aside = lock.with_name(f".{lock.name}.{os.getpid()}")
    try:
        lock.rename(aside)
    except FileNotFoundError:
        return  # another process has removed the lock
    if is_left_behind(aside):
        aside.unlink()
    else:
        aside.rename(lock)


def _place() -> tuple[str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return boot, str(os.stat("/proc/self/ns/pid").st_ino)


def _start_of(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot, or "" if the process has ended or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
