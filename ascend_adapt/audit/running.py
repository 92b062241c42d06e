"""Dynamic audit: runs a command, and collects what each package changes in other packages, in all processes."""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_adapt import interruption
from ascend_adapt.errors import AdaptError

BOOTSTRAP = Path(__file__).parent / "bootstrap"


@dataclass(frozen=True)
class Change:
    """One assignment: ``kind`` is changed, set to None, added or setting."""

    target: str
    kind: str
    old: str
    new: str
    by: str
    at: str

    @property
    def pair(self) -> tuple[str, str]:
        """The package that assigns, and the package that it changes."""
        return self.by.partition(".")[0], self.target.partition(".")[0]


@dataclass(frozen=True)
class Seen:
    """The changes that the processes of a command made. A change in several processes counts once."""

    command: tuple[str, ...]
    exit_code: int
    processes: int
    changes: tuple[Change, ...]
    stale: tuple[tuple[str, str], ...]
    fake: tuple[str, ...]

    @property
    def several(self) -> dict[str, tuple[Change, ...]]:
        """Targets to which several different values were assigned."""
        by_target: dict[str, list[Change]] = defaultdict(list)
        for change in self.changes:
            if change.kind != "setting":
                by_target[change.target].append(change)
        return {target: tuple(both) for target, both in by_target.items() if len({one.new for one in both}) > 1}

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {
            "command": list(self.command),
            "exit_code": self.exit_code,
            "processes": self.processes,
            "changes": [vars(one) for one in self.changes],
            "several": {target: [one.at for one in both] for target, both in self.several.items()},
            "stale_aliases": [{"alias": alias, "of": target} for alias, target in self.stale],
            "fake_modules": list(self.fake),
        }


def run(command: Sequence[str], environ: Mapping[str, str]) -> Seen:
    """Run a command with the recorder in each of its Python processes. The command's output goes to standard error.

    Raises:
        AdaptError: the command cannot be started, or no Python process ended normally.
    """
    with tempfile.TemporaryDirectory(prefix="ascend-adapt-audit-") as folder:
        path = os.pathsep.join(filter(None, (str(BOOTSTRAP), environ.get("PYTHONPATH"))))
        variables = {**environ, "PYTHONPATH": path, "ASCEND_ADAPT_AUDIT": folder}
        try:
            code = interruption.run(command, env=variables, stdout=2)
        except OSError as error:
            raise AdaptError(f"{command[0]}: {error.strerror}, expected a command — pass a command after --") from error
        written = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(Path(folder).glob("*.json"))]
    if not written:
        raise AdaptError(
            f"{' '.join(command)}: no Python process ended normally (exit code {code}), expected a process that "
            "imports the patcher and ends — run python -c 'import PATCHER'"
        )
    changes = dict.fromkeys(Change(**one) for each in written for one in each["changes"])
    stale = dict.fromkeys((one["alias"], one["of"]) for each in written for one in each["stale"])
    fake = dict.fromkeys(name for each in written for name in each["fake"])
    return Seen(tuple(command), code, len(written), tuple(changes), tuple(stale), tuple(fake))
