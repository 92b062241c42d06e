"""What was seen of each run of a job, as lines of JSON that later runs and tables are made from."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from upstream_job import Ended, Place


@dataclass(frozen=True)
class Record:
    """One run: ``without`` are the patches that it was reported to leave out, ``reported`` its last words.

    ``commit`` is the one that last changed this project's code.
    """

    job: str
    device: str
    dtype: str
    without: tuple[str, ...]
    adapted: bool
    seconds: float
    code: int
    losses: tuple[float, ...]
    applied: tuple[str, ...]
    states: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    reported: str = ""
    commit: str = ""

    @classmethod
    def of(
        cls, job: str, place: Place, ended: Ended, *, without: Sequence[str], adapted: bool, seconds: float
    ) -> Record:
        """Return the record of a run that has just ended."""
        where = (job, place.device, place.dtype, tuple(without), adapted, round(seconds, 1))
        seen = (ended.code, ended.losses, tuple(ended.applied), dict(ended.states), tuple(ended.problems))
        return cls(*where, *seen, ended.last_words, _commit())

    @property
    def line(self) -> str:
        """It as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"


@cache
def _commit() -> str:
    """The commit that last changed this project's code, with "+" if it is edited since; "" outside a repository."""
    git, code = ["git", "-C", str(Path(__file__).parents[2])], ["--", "ascend_adapt", "plugins"]
    last = subprocess.run([*git, "log", "-1", "--format=%h", "--abbrev=8", *code], capture_output=True, text=True)
    edited = subprocess.run([*git, "status", "--porcelain", *code], capture_output=True, text=True)
    return last.stdout.strip() + ("+" if edited.stdout else "")


def append(path: Path, record: Record) -> None:
    """Add a record to a file."""
    with path.open("a") as file:
        file.write(record.line)


def read(path: Path) -> list[Record]:
    """Return the records of a file, oldest first; none if there is no file."""
    if not path.exists():
        return []
    tuples = ("without", "losses", "applied", "problems")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [Record(**{**line, **{name: tuple(line[name]) for name in tuples}}) for line in lines]
