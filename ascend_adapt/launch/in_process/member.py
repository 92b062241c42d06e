"""This process as a member of a job: adapted, and if it is a rank, reporting and compared with the other ranks."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.one_host.processes import Identity
from ascend_adapt.launch.one_host.run_directory import RunDirectory, write_whole
from ascend_adapt.runtime import agreement, enabling

_joined = False


def join() -> bool:
    """Adapt this process, once; a rank also writes its status now, at the first apply and at exit.

    Return False if the script's own enable() is at work just now, which is to be joined later.

    Raises:
        AdaptError: as enable(); and if this rank has other versions or patches than one that is there already.
    """
    global _joined
    if _joined:
        return True  # and what the script has done since, such as disable(), stands
    if enabling.is_beginning():
        return False
    enabling.enable()
    rank, folder = _own_rank(), os.environ.get("ASCEND_ADAPT_RUN_DIR")
    if rank is not None and folder:
        _take_part(RunDirectory(Path(folder)), rank)
    _joined = True
    return True


def _take_part(run_dir: RunDirectory, rank: int) -> None:
    pid = os.getpid()
    # On another host, where a launcher that is not ours has started this rank, nobody has made it yet.
    with contextlib.suppress(OSError):
        run_dir.path.mkdir(parents=True, exist_ok=True)

    told: dict[str, dict[str, str]] = {}

    def report_and_compare(moment: str) -> None:
        # A forked child, such as a data loader's worker, inherits this and the exit handlers, and is not the rank.
        if os.getpid() == pid:
            _compare(run_dir, _report(run_dir, rank, moment, told))

    def report_at_exit() -> None:
        if os.getpid() == pid:
            try:
                _report(run_dir, rank, agreement.END, told)
            except LaunchError as error:
                # A full disk is no failure of the job.
                print(f"ascend_adapt: {error}; `ascend-adapt status` shows this rank as it began", file=sys.stderr)

    report_and_compare(agreement.START)
    enabling.at_first_apply(lambda: report_and_compare(agreement.FIRST_APPLY))
    atexit.register(report_at_exit)


def _own_rank() -> int | None:
    """Return the rank that this process is; what a rank starts inherits RANK and is none."""
    rank, pid = os.environ.get("RANK", ""), os.environ.get("ASCEND_ADAPT_RANK_PID", "").partition(" ")[0]
    return int(rank) if rank.isdigit() and pid == str(os.getpid()) else None


def _report(run_dir: RunDirectory, rank: int, moment: str, told: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Write what this rank is now, add that to the facts told at each moment so far, and return what was written."""
    status = enabling.status()
    # What was told at a moment stands: one at which ranks differ comes again if the script swallowed that.
    told.setdefault(moment, agreement.facts(status, enabling.kernel_backends()))
    data = {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "job": os.environ.get("ASCEND_ADAPT_JOB", ""),
        "since": Identity.own().since(),
        "until": time.time() if moment == agreement.END else None,
        "digest": agreement.digest(told[moment]),
        "facts": told,
        **status.to_json(),
    }
    try:
        write_whole(run_dir.rank_status(rank), data)
    except OSError as error:
        raise LaunchError(
            f"{run_dir.path}: {error.strerror}, expected a folder with room that ranks can write — free space, or "
            "choose another with --log-dir"
        ) from error
    return data


def _compare(run_dir: RunDirectory, own: dict[str, Any]) -> None:
    """Raise if a rank differs from another.

    Each writes before it reads, so of two that differ one at least sees the other, before it runs a line of the script.
    """
    told: dict[int, dict[str, dict[str, str]]] = {}
    for path in run_dir.path.glob("adapt-status.*.json"):
        data: dict[str, Any] = json.loads(path.read_text())
        if data["job"] == own["job"] and agreement.met(own, data):
            told[int(data["rank"])] = data["facts"]
    found = agreement.differences(told)
    if found:
        more = f"; {len(found) - 1} more differences" if len(found) > 1 else ""
        raise LaunchError(f"{found[0]}{more} — give all ranks the same packages and settings")
