"""Adapts a process of a job, records its status, and compares the environments of ranks."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ascend_adapt import at_exit, probe, regular_files
from ascend_adapt.errors import LaunchError, one_line
from ascend_adapt.launch.in_process import device_use
from ascend_adapt.launch.in_process.status_file import StatusFile, claim_program
from ascend_adapt.launch.one_host.run_directory import RunDirectory
from ascend_adapt.runtime import agreement, enabling

_joined = False
_file: StatusFile | None = None
"""The status file of this process; in a forked child, of the process that it is a copy of."""


def join() -> bool:
    """Adapt this process once; a rank or program also writes its status now, at the first applied patch, and at exit.

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
    rank, folder = probe.own_rank(), os.environ.get("ASCEND_ADAPT_RUN_DIR")
    if folder and enabling.status().device == "npu" and os.environ.get("ASCEND_ADAPT_CUDA_CODE") != "off":
        device_use.watch(Path(folder), is_rank=rank is not None)
    if folder:
        _take_part(RunDirectory(Path(folder)), rank)
    _joined = True
    return True


def _take_part(run_dir: RunDirectory, rank: int | None) -> None:
    # On another host, where a foreign launcher has started this process, the folder does not exist yet.
    with contextlib.suppress(OSError):
        run_dir.path.mkdir(parents=True, exist_ok=True)
    if rank is not None or claim_program():
        _begin(StatusFile(run_dir, rank), agreement.START)
    # Under a launcher that sets RANK, only its processes are ranks, not what they start for other groups.
    if "RANK" not in os.environ:
        from wrapt import register_post_import_hook

        register_post_import_hook(lambda module: _watch_groups(module, run_dir), "torch.distributed.distributed_c10d")


def _watch_groups(distributed: ModuleType, run_dir: RunDirectory) -> None:
    """Notice when this process, or a child of it, initializes torch.distributed.

    A script's own ranks, such as those of torch.multiprocessing.spawn, have no RANK in their environment.
    """
    from wrapt import wrap_function_wrapper

    def initialize(wrapped: Callable[..., None], _: Any, args: Any, named: Any) -> None:
        wrapped(*args, **named)
        _join_group(distributed.get_rank() if distributed.get_world_size() > 1 else None, run_dir)

    wrap_function_wrapper(distributed, "init_process_group", initialize)


def _join_group(rank: int | None, run_dir: RunDirectory) -> None:
    """Write the status of a process that is now a rank or, with ``rank`` None, the only one of its group."""
    own = _file if _file is not None and _file.is_of_this_process() else None
    file = StatusFile(run_dir, rank, facts=own.facts if own is not None else {})
    if (own is not None and (own.rank is not None or rank is None)) or file.is_in_use():
        return  # It has a status already, or another program has this rank at the same time.
    if rank is not None:
        probe.set_own_rank(rank)
    if own is None:
        _begin(file, agreement.FIRST_APPLY)
    else:
        own.path.unlink(missing_ok=True)
        own.rank = rank
        _compare(run_dir, own.write(agreement.FIRST_APPLY))


def _begin(file: StatusFile, moment: str) -> None:
    """Write the status of this process now and later; a rank also compares itself with the other ranks."""
    global _file
    _file = file

    def report_and_compare(moment: str) -> None:
        if file.rank is not None:
            _compare(file.run_dir, file.write(moment))
        else:
            _try_to_write(file, moment)

    def at_first_apply() -> None:
        if file.may_write_again():
            report_and_compare(agreement.FIRST_APPLY)

    def report_at_exit() -> None:
        if file.may_write_again():
            _try_to_write(file, agreement.END)

    report_and_compare(moment)
    enabling.at_first_apply(at_first_apply)
    at_exit.call(report_at_exit)


def _try_to_write(file: StatusFile, moment: str) -> None:
    try:
        file.write(moment)
    except LaunchError as error:
        # A full disk must not fail the job.
        state = "has no status of this program" if moment == agreement.START else "shows the state at the start"
        print(f"ascend_adapt: {error}; `ascend-adapt status` {state}", file=sys.stderr)


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
            if data["rank"] is not None and data["job"] == own["job"] and agreement.met(own, data):
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
