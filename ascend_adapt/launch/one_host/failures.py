"""Failure records of ranks, which identify the rank that failed first."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ascend_adapt.errors import type_and_message
from ascend_adapt.launch.one_host.processes import code_name
from ascend_adapt.launch.one_host.run_directory import RunDirectory, write_whole

_LONGEST = 500
_LONGEST_TRACE = 1 << 14


@dataclass(frozen=True)
class Failure:
    """Failure of a rank, or of a command if ``rank`` is None.

    Attributes:
        error: the error message, or "" if there was none.
        cause: the cause and the next step on one line each, if a known problem explains the failure.
        traceback: the traceback of a rank that a command has started, because such a rank has no log here.
    """

    rank: int | None
    time_ns: int
    code: int
    error: str = ""
    host: str = ""
    cause: str = ""
    traceback: str = ""

    def report(self, run_dir: RunDirectory) -> list[str]:
        """Return the closing lines of a failed job: the failure, its cause and the next step."""
        return [self._described(run_dir), *self.cause.splitlines()]

    def _described(self, run_dir: RunDirectory) -> str:
        if self.rank is None:
            return self.error
        what = f"{self.error} ({code_name(self.code)})" if self.error else code_name(self.code)
        where = f"on {self.host or socket.gethostname()}"
        return f"rank {self.rank} {where} failed first: {what}; its log: {run_dir.rank_log(self.rank)}"


def record(environ: Mapping[str, str], code: int, error: str, trace: str = "") -> None:
    """Write this rank's failure to the run directory, if there is one."""
    folder, rank = environ.get("ASCEND_ADAPT_RUN_DIR"), environ.get("RANK", "")
    if not folder or not rank.isdigit():
        return
    failure = {"rank": int(rank), "time_ns": time.time_ns(), "code": code, "host": socket.gethostname()}
    failure |= {"traceback": trace} if trace else {}
    data = {**failure, "error": error if len(error) <= _LONGEST else f"{error[:_LONGEST]} ..."}
    try:
        write_whole(RunDirectory(Path(folder)).failures / f"{rank}.{os.getpid()}.json", data)
    except OSError as problem:
        # A full disk must not hide the error itself, which is printed next.
        print(f"ascend_adapt: {folder}: {problem.strerror}, so this failure is not recorded there", file=sys.stderr)


def record_uncaught(environ: Mapping[str, str], error: BaseException, trace: TracebackType | None) -> None:
    """Write the exception that ends this rank to the run directory, unless ``rank_entry`` has done so."""
    folder = environ.get("ASCEND_ADAPT_RUN_DIR", "")
    if isinstance(error, KeyboardInterrupt) or any(RunDirectory(Path(folder)).failures.glob(f"*.{os.getpid()}.json")):
        return
    text = "".join(traceback.format_exception(type(error), error, trace))
    record(environ, 1, type_and_message(error), text[-_LONGEST_TRACE:])


def earliest(run_dir: RunDirectory, seen: Failure, since_ns: int) -> Failure:
    """Return the earliest failure: a rank may have failed before the rank of ``seen``, whose process ended first."""
    if seen.rank is None:
        return seen
    recorded = list(_recorded(run_dir).values())
    own = [failure for failure in recorded if failure.rank == seen.rank and failure.time_ns >= since_ns]
    if own:
        # The kernel reports the exit code; the rank records the message and the time.
        seen = Failure(seen.rank, own[0].time_ns, seen.code, own[0].error, own[0].host)
    return min([seen, *(failure for failure in recorded if failure.time_ns >= since_ns)], key=lambda one: one.time_ns)


def first_recorded(run_dir: RunDirectory, since_ns: int, ranks: Collection[int] | None) -> Failure | None:
    """Return the first failure that one of ``ranks`` (or any rank, if None) recorded, or None."""
    recorded = list(_recorded(run_dir).values())
    own = [one for one in recorded if one.time_ns >= since_ns and (ranks is None or one.rank in ranks)]
    return min(own, key=lambda one: one.time_ns, default=None)


def hidden_by_a_command(run_dir: RunDirectory, since_ns: int) -> Failure | None:
    """Return the first rank failure that a command hides by its exit code 0, such as a script ending in ``tee``.

    A failure does not count if a later process of the same rank exists, because a launcher or a loop has restarted it.
    """
    recorded = _recorded(run_dir)
    counted = [one for path, one in recorded.items() if one.time_ns >= since_ns and _is_last_of_its_rank(path, run_dir)]
    return min(counted, key=lambda one: one.time_ns, default=None)


def _is_last_of_its_rank(path: Path, run_dir: RunDirectory) -> bool:
    rank, _, pid = path.stem.partition(".")
    try:
        return str(json.loads(run_dir.rank_status(int(rank)).read_text())["pid"]) == pid
    except (OSError, ValueError, KeyError, RecursionError):
        return False


def _recorded(run_dir: RunDirectory) -> dict[Path, Failure]:
    """Return the failures that ranks have recorded, keyed by file."""
    return {path: failure for path in run_dir.failures.glob("*.json") if (failure := _read(path)) is not None}


def _read(path: Path) -> Failure | None:
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        return Failure(**data)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
