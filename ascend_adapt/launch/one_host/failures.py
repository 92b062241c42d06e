"""Failure records of ranks, which identify the rank that failed first."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from ascend_adapt import regular_files
from ascend_adapt.errors import type_and_message
from ascend_adapt.launch.one_host.moment import Moment, have_one_clock
from ascend_adapt.launch.one_host.processes import code_name
from ascend_adapt.launch.one_host.run_directory import RunDirectory, write_whole
from ascend_adapt.whole_numbers import whole_number

_LONGEST = 500
_LONGEST_TRACE = 1 << 14
_FORWARDED = ("ChildFailedError", "CalledProcessError")
"""Exceptions that only report the failure of another process."""
_NO_RANK = "process"
"""What the name of a failure's file has instead of a rank, if a command starts no ranks."""
_TRACEBACK = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d+)', re.MULTILINE)
# What follows the last frame and its code, which are indented.
_ERROR = re.compile(r"^\S.*", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """Failure of a rank, or of a command if ``rank`` is None.

    Attributes:
        at: when it was recorded, by its host's clocks.
        error: the error message, or "" if there was none.
        cause: the cause and the next step on one line each, if a known problem explains the failure.
        traceback: the traceback of a process that a command has started, because such a process has no log here.
    """

    rank: int | None
    at: Moment
    code: int
    error: str = ""
    host: str = ""
    cause: str = ""
    traceback: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Failure:
        """Return a failure that ``asdict`` made plain.

        Raises:
            KeyError, TypeError: it is not one.
        """
        return cls(**{**data, "at": Moment(**data["at"])})

    def report(self, run_dir: RunDirectory) -> list[str]:
        """Return the closing lines of a failed job: the failure, its cause and the next step."""
        return [self._described(run_dir), *self.cause.splitlines()]

    def _described(self, run_dir: RunDirectory) -> str:
        if self.rank is None:
            return self.error
        what = f"{self.error} ({code_name(self.code)})" if self.error else code_name(self.code)
        where = f"on {self.host or socket.gethostname()}"
        return f"rank {self.rank} {where} failed first: {what}; its log: {run_dir.rank_log(self.rank)}"


def described(error: BaseException) -> str:
    """Return the type and message of an exception on one line.

    torch.multiprocessing.spawn and a DataLoader raise exceptions whose message is the traceback of another process:
    return that process's exception, and where it was raised.
    """
    _, _, trace = str(error).rpartition(_TRACEBACK)
    frames = list(_FRAME.finditer(trace))
    raised = _ERROR.search(trace, frames[-1].end()) if frames else None
    if raised is None:
        return type_and_message(error)
    return f"{' '.join(raised[0].split())} at {frames[-1][1]}:{frames[-1][2]}"


def exit_described(request: SystemExit) -> str:
    """Return the call of sys.exit and the exception that the caller handled, which argparse and scripts only print."""
    handled = None if request.__suppress_context__ else request.__context__
    return f"sys.exit({request.code}){f' while handling {described(handled)}' if handled is not None else ''}"


def record(environ: Mapping[str, str], code: int, error: str, trace: str = "") -> None:
    """Write the failure of this rank, or of a process that is no rank, to the run directory, if there is one."""
    folder, rank = environ.get("ASCEND_ADAPT_RUN_DIR"), whole_number(environ.get("RANK"))
    if not folder:
        return
    path = RunDirectory(Path(folder)).failures / f"{_NO_RANK if rank is None else rank}.{os.getpid()}.json"
    failure = {"rank": rank, "at": asdict(Moment.now()), "code": code, "host": socket.gethostname()}
    failure |= {"traceback": trace} if trace else {}
    data = {**failure, "error": error if len(error) <= _LONGEST else f"{error[:_LONGEST]} ..."}
    try:
        write_whole(path, data)
    except OSError as problem:
        # A full disk must not hide the error itself, which is printed next.
        print(f"ascend_adapt: {folder}: {problem.strerror}, so this failure is not recorded there", file=sys.stderr)


def record_uncaught(environ: Mapping[str, str], error: BaseException, trace: TracebackType | None) -> None:
    """Write the exception that ends this process to the run directory, unless ``rank_entry`` has done so."""
    folder = environ.get("ASCEND_ADAPT_RUN_DIR", "")
    if isinstance(error, KeyboardInterrupt) or any(RunDirectory(Path(folder)).failures.glob(f"*.{os.getpid()}.json")):
        return
    if "RANK" not in environ and type(error).__name__ in _FORWARDED:
        return
    text = "".join(traceback.format_exception(type(error), error, trace))
    record(environ, 1, described(error), text[-_LONGEST_TRACE:])


def earliest(run_dir: RunDirectory, seen: Failure, since: Moment) -> Failure:
    """Return the earliest failure on this host: another rank may have failed before the one whose process ended first.

    The launcher orders the failures of several hosts, also if they share a run directory.
    """
    if seen.rank is None:
        return seen
    here = [one for one in _recorded(run_dir, since).values() if one.at.boot == seen.at.boot]
    own = [one for one in here if one.rank == seen.rank]
    if own:
        # The kernel reports the exit code; the rank records the message and the time.
        seen = replace(own[0], code=seen.code, traceback="")
    return _first([seen, *here]) or seen


def first_recorded(run_dir: RunDirectory, since: Moment, ranks: Collection[int] | None) -> Failure | None:
    """Return the first failure that one of ``ranks`` (or any rank, if None) recorded, or None."""
    return _first(one for one in _recorded(run_dir, since).values() if ranks is None or one.rank in ranks)


def last_of_a_process(run_dir: RunDirectory, since: Moment) -> Failure | None:
    """Return the last failure that a command's processes without a rank recorded: a script may tolerate others."""
    return max(_recorded(run_dir, since, _NO_RANK).values(), key=lambda one: one.at.wall_ns, default=None)


def hidden_by_a_command(run_dir: RunDirectory, since: Moment) -> Failure | None:
    """Return the first rank failure that a command hides by its exit code 0, such as a script ending in ``tee``.

    A failure does not count if a later process of the same rank exists, because a launcher or a loop has restarted it.
    """
    return _first(one for path, one in _recorded(run_dir, since).items() if _is_last_of_its_rank(path, run_dir))


def _first(found: Iterable[Failure]) -> Failure | None:
    """Return the first failure; by the wall clock if they are of several hosts, which nothing else orders."""
    every = list(found)
    clock = "monotonic_ns" if have_one_clock([one.at for one in every]) else "wall_ns"
    return min(every, key=lambda one: getattr(one.at, clock), default=None)


def _is_last_of_its_rank(path: Path, run_dir: RunDirectory) -> bool:
    rank, _, pid = path.stem.partition(".")
    try:
        return str(json.loads(regular_files.read_text(run_dir.rank_status(int(rank))))["pid"]) == pid
    except (OSError, ValueError, KeyError, RecursionError):
        return False


def _recorded(run_dir: RunDirectory, since: Moment, ranks: str = "[0-9]*") -> dict[Path, Failure]:
    """Return the failures that ranks, or processes without a rank, have recorded since a moment, keyed by file."""
    found = {path: _read(path) for path in run_dir.failures.glob(f"{ranks}.*.json")}
    return {path: one for path, one in found.items() if one is not None and not one.at.is_before(since)}


def _read(path: Path) -> Failure | None:
    try:
        return Failure.from_json(json.loads(regular_files.read_text(path)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
