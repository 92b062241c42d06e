"""Adapts a process of a job; a rank also writes its status and compares its environment with the other ranks."""

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

from ascend_adapt import regular_files
from ascend_adapt.errors import LaunchError, one_line
from ascend_adapt.launch.in_process import device_use
from ascend_adapt.launch.one_host.processes import Identity
from ascend_adapt.launch.one_host.run_directory import RunDirectory, write_whole
from ascend_adapt.probe import own_rank
from ascend_adapt.runtime import agreement, enabling

_joined = False


def join() -> bool:
    """Adapt this process once; a rank also writes its status now, at the first applied patch, and at exit.

    Return False while the script's enable() is running; the caller must call again later.

    Raises:
        AdaptError: enable() raises it, or this rank's versions or patches differ from those of another rank.
    """
    global _joined
    if _joined:
        return True  # Later changes by the script, such as disable(), stay in effect.
    if enabling.is_beginning():
        return False
    enabling.enable()
    rank, folder = own_rank(), os.environ.get("ASCEND_ADAPT_RUN_DIR")
    if folder and enabling.status().device == "npu" and os.environ.get("ASCEND_ADAPT_CUDA_CODE") != "off":
        device_use.watch(Path(folder), is_rank=rank is not None)
    if rank is not None and folder:
        _take_part(RunDirectory(Path(folder)), rank)
    _joined = True
    return True


def _take_part(run_dir: RunDirectory, rank: int) -> None:
    pid = os.getpid()
    # On another host, where a foreign launcher has started this rank, the folder does not exist yet.
    with contextlib.suppress(OSError):
        run_dir.path.mkdir(parents=True, exist_ok=True)

    facts: dict[str, dict[str, str]] = {}

    def report_and_compare(moment: str) -> None:
        # A forked child, such as a data loader's worker, inherits this hook but is not the rank.
        if os.getpid() == pid:
            _compare(run_dir, _report(run_dir, rank, moment, facts))

    def report_at_exit() -> None:
        if os.getpid() == pid:
            try:
                _report(run_dir, rank, agreement.END, facts)
            except LaunchError as error:
                # A full disk must not fail the job.
                print(
                    f"ascend_adapt: {error}; `ascend-adapt status` shows this rank's state at its start",
                    file=sys.stderr,
                )

    report_and_compare(agreement.START)
    enabling.at_first_apply(lambda: report_and_compare(agreement.FIRST_APPLY))
    atexit.register(report_at_exit)


def _report(run_dir: RunDirectory, rank: int, moment: str, facts: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Write this rank's status, with the facts recorded at each stage so far, and return it."""
    status = enabling.status()
    # The first facts of each stage are kept, so an error about differing ranks is raised again if the script caught it.
    facts.setdefault(moment, agreement.facts(status, enabling.kernel_backends()))
    data = {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "job": os.environ.get("ASCEND_ADAPT_JOB", ""),
        "since": Identity.own().since(),
        "until": time.time() if moment == agreement.END else None,
        "digest": agreement.digest(facts[moment]),
        "facts": facts,
        **status.to_json(),
    }
    try:
        write_whole(run_dir.rank_status(rank), data)
    except OSError as error:
        raise LaunchError(
            f"{run_dir.path}: {error.strerror}, expected a writable folder with space left — free space, or "
            "choose another with --log-dir"
        ) from error
    return data


def _compare(run_dir: RunDirectory, own: dict[str, Any]) -> None:
    """Raise an error if this rank differs from another rank.

    Each rank writes before it reads, so at least one of two differing ranks sees the other before its script starts.

    Raises:
        LaunchError: the ranks differ, or the status file of another rank is damaged.
    """
    facts_by_rank: dict[int, dict[str, dict[str, str]]] = {}
    for path in run_dir.path.glob("adapt-status.*.json"):
        try:
            data: dict[str, Any] = json.loads(regular_files.read_text(path))
            if data["job"] == own["job"] and agreement.met(own, data):
                facts_by_rank[int(data["rank"])] = data["facts"]
        except OSError as error:
            raise LaunchError(
                f"{path}: {error.strerror}, expected a file that this rank can read — remove it, or correct the umask"
            ) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise LaunchError(f"{path}: is not a status file ({one_line(error)}) — remove it") from error
    found = agreement.differences(facts_by_rank)
    if found:
        more = f"; {len(found) - 1} more differences" if len(found) > 1 else ""
        raise LaunchError(f"{found[0]}{more} — give all ranks the same packages and settings")
