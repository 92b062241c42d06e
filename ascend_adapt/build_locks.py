"""Lock files of torch's extension builder, and whether the process that made one still lives.

torch leaves them empty. Written into them: the host's boot, the PID namespace, process and start time of the builder.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from ascend_adapt import probe

# Without a record, the builder may be on another host or in another container. No single compiler call takes longer.
SILENT_AFTER_S = 600


def sign(lock: Path) -> None:
    """Write into a lock that this process has just made, who made it."""
    lock.write_text(" ".join((*_place(), str(os.getpid()), _start_of(os.getpid()))))


def is_left_behind(lock: Path) -> bool:
    """Return whether the process that made ``lock`` is gone; a lock without a record is judged by its silence."""
    try:
        record = lock.read_text(errors="replace").split()
        if len(record) == 4 and tuple(record[:2]) == _place():
            return _start_of(int(record[2])) != record[3]
        return not probe.processes_that_hold(lock) and silent_s(lock) > SILENT_AFTER_S
    except (OSError, ValueError):
        return False  # it is released, or a record that is being written


def silent_s(lock: Path) -> float:
    """Return for how many seconds nothing has changed in the build's folder."""
    newest = max(path.stat().st_mtime for path in (lock, *lock.parent.iterdir()))
    return time.time() - newest


def remove(lock: Path) -> None:
    """Remove a lock that was left behind; one that another process has made meanwhile is put back."""
    aside = lock.with_name(f".{lock.name}.{os.getpid()}")
    try:
        lock.rename(aside)
    except FileNotFoundError:
        return  # another process was faster
    if is_left_behind(aside):
        aside.unlink()
    else:
        aside.rename(lock)


def _place() -> tuple[str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return boot, str(os.stat("/proc/self/ns/pid").st_ino)


def _start_of(pid: int) -> str:
    """Return when a process started, in clock ticks since the boot, or "" if there is none; a zombie is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
