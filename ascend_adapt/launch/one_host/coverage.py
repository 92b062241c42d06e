"""Detects, from outside, ranks under a command that patches do not reach; such a rank cannot report itself."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ascend_adapt.launch.one_host import processes
from ascend_adapt.launch.one_host.processes import Identity
from ascend_adapt.launch.one_host.run_directory import RunDirectory

_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
_TAKES_VALUE = "WX"
_LOOK_S, _LOOK_LATER_S, _LATER_S = 0.2, 2.0, 60.0
# An interpreter imports site long before this time; a beacon that does not exist by then is missing, not late.
_SETTLED_S = 10.0


@dataclass(frozen=True)
class Unreached:
    """A rank that left no beacon, and the reason."""

    rank: str
    pid: int
    why: str

    def __str__(self) -> str:
        return (
            f"rank {self.rank} (pid {self.pid}) is not adapted: {self.why} — start it without that, or with --no-adapt"
        )


class CoverageWatch:
    """Watches the descendants of this process until it knows whether the bootstrap has reached each of them."""

    def __init__(self, run_dir: RunDirectory, bootstrap: str, settled_s: float = _SETTLED_S) -> None:
        self._run_dir, self._bootstrap, self._settled_s = run_dir, bootstrap, settled_s
        self._first_seen: dict[Identity, float] = {}
        self._known: set[Identity] = set()
        self._last_new = time.monotonic()

    @property
    def interval(self) -> float:
        """Seconds until the next check, which are fewer while processes are starting."""
        return _LOOK_S if time.monotonic() - self._last_new < _LATER_S else _LOOK_LATER_S

    def look(self) -> list[Unreached]:
        """Return the ranks that were found to be unreached since the last check."""
        found = []
        below = processes.descendants(os.getpid())
        for one in below:
            if one in self._known:
                continue
            if one not in self._first_seen:
                self._first_seen[one] = self._last_new = time.monotonic()
            waited = time.monotonic() - self._first_seen[one]
            if (self._run_dir.beacons / str(one.pid)).exists():
                self._known.add(one)
            elif one.is_forked_copy():
                continue  # A forked copy is adapted if its parent is; it may still exec another program.
            elif (unreached := self._judge(one, settled=waited >= self._settled_s)) is not None:
                self._known.add(one)
                found.append(unreached)
        self._known.intersection_update(below)
        self._first_seen = {one: self._first_seen[one] for one in below}
        return found

    def _judge(self, one: Identity, settled: bool) -> Unreached | None:
        """Return an Unreached if this process is a rank without a beacon; None if not, or if it may still exec."""
        try:
            program = Path(os.readlink(f"/proc/{one.pid}/exe")).name
            argv = _words(one.pid, "cmdline")
            environ = dict(word.partition("=")[::2] for word in _words(one.pid, "environ"))
        except OSError:
            return None
        if not _PYTHON.fullmatch(program) or not environ.get("RANK"):
            return None
        why = why_unreached(argv, environ.get("PYTHONPATH", ""), self._bootstrap)
        if not why and settled:
            why = "it left no beacon file"
        return Unreached(environ["RANK"], one.pid, why) if why and one.is_alive() else None


def why_unreached(argv: Sequence[str], python_path: str, bootstrap: str) -> str:
    """Return the reason why a Python process does not import the bootstrap, or "" if there is none."""
    for word in argv[1:]:
        if not word.startswith("-") or word.startswith("--") or word == "-":
            break
        flags = re.split(rf"[cm{_TAKES_VALUE}]", word[1:], maxsplit=1)[0]
        for flag in "IES":
            if flag in flags:
                return f"its interpreter was started with -{flag}"
        if word[1:2] in ("c", "m"):
            break
    if bootstrap not in python_path.split(os.pathsep):
        return "its PYTHONPATH was cleared or overwritten"
    return ""


def _words(pid: int, name: str) -> list[str]:
    return os.fsdecode(Path(f"/proc/{pid}/{name}").read_bytes()).split("\0")[:-1]
