"""The status file of a process: which processes write one, under which name, and what it holds.

A rank writes ``adapt-status.<rank>.json``, a program without a rank ``adapt-status.p<pid>.json``. Helper processes,
such as workers of a DataLoader and processes that a script starts, write none.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascend_adapt import probe, regular_files
from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.one_host.processes import Identity
from ascend_adapt.launch.one_host.run_directory import RunDirectory, write_whole
from ascend_adapt.runtime import agreement, enabling

_PROGRAM = "ASCEND_ADAPT_PROGRAM"
_SCRIPT, _COMMAND = "script", "command"


def claim_program() -> bool:
    """Return whether this process runs a program of the job; its descendants are then its helpers.

    An installed command, such as ``accelerate launch``, may start the user's script, which is a program too.
    """
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return False
    # A spawned process of multiprocessing imports the script before it knows its parent.
    if "--multiprocessing-fork" in sys.orig_argv or _is_of_another(os.environ.get("ASCEND_ADAPT_RANK_PID", "")):
        return False
    kind = _SCRIPT if probe.runs_a_script() else _COMMAND
    claimed = os.environ.get(_PROGRAM, "")
    if _is_of_another(claimed) and (claimed.endswith(_SCRIPT) or kind == _COMMAND):
        return False
    os.environ[_PROGRAM] = f"{os.getpid()} {kind}"
    return True


def _is_of_another(claim: str) -> bool:
    return bool(claim) and not probe.is_own_pid(claim)


@dataclass
class StatusFile:
    """The status file of this process; ``rank`` is None for a program that is not a rank."""

    run_dir: RunDirectory
    rank: int | None
    pid: int = field(default_factory=os.getpid)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.run_dir.program_status(self.pid) if self.rank is None else self.run_dir.rank_status(self.rank)

    def is_of_this_process(self) -> bool:
        """Return False in a forked child, such as a data loader's worker, which inherits this object and its hooks."""
        return os.getpid() == self.pid

    def may_write_again(self) -> bool:
        """Return False if a later process of this rank has written the file, or in a forked child."""
        return self.is_of_this_process() and not self._of_another()

    def is_in_use(self) -> bool:
        """Return whether the file belongs to another process of this job that may still be running."""
        data = self._of_another()
        if not data or data.get("until") is not None:
            return False
        if data["host"] != socket.gethostname():
            return True
        process = Identity.of(data["pid"])
        return process is not None and process.is_alive()

    def _of_another(self) -> dict[str, Any]:
        try:
            data: dict[str, Any] = json.loads(regular_files.read_text(self.path))
            is_of_this_job = data["job"] == _job() and isinstance(data["pid"], int)
            is_other = is_of_this_job and (data["host"], data["pid"]) != (socket.gethostname(), self.pid)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return {}  # missing or damaged
        return data if is_other else {}

    def write(self, moment: str) -> dict[str, Any]:
        """Write the status, with the facts recorded at each moment so far, and return it.

        Raises:
            LaunchError: the file cannot be written.
        """
        status = enabling.status()
        # The first facts of each moment are kept, so an error about differing ranks is raised again if the script
        # caught it.
        self.facts.setdefault(moment, agreement.facts(status, enabling.kernel_backends()))
        data = {
            "rank": self.rank,
            "host": socket.gethostname(),
            "pid": self.pid,
            "job": _job(),
            "since": Identity.own().since(),
            "until": time.time() if moment == agreement.END else None,
            "digest": agreement.digest(self.facts[moment]),
            "facts": self.facts,
            **status.to_json(),
        }
        try:
            write_whole(self.path, data)
        except OSError as error:
            raise LaunchError(
                f"{self.run_dir.path}: {error.strerror}, expected a writable folder with space left — free space, or "
                "choose another with --log-dir"
            ) from error
        return data


def _job() -> str:
    return os.environ.get("ASCEND_ADAPT_JOB", "")
