"""Run doctor, explain and status on jobs that trained: every problem that they name there is a false alarm.

    python tests/upstream_runs/diagnose.py FOLDER ...     what `run.py --keep FOLDER` left there

`run.py --diagnose` does the same after each job. Exit code 1 if doctor prints "must be fixed", explain names a problem
or an error code in the log, the rehearsal a known problem, or status a problem; notes are listed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascend_adapt.problems import reading

STARTED = "started.json"


@dataclass
class Diagnosed:
    """What the commands printed about one job: false alarms, and notes."""

    alarms: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def remember(folder: Path, device: str, words: Sequence[str], inside: Path, variables: Mapping[str, str]) -> None:
    """Keep how a job was started beside its output: its words, working directory and own variables."""
    started = {"device": device, "words": list(words), "inside": str(inside), "variables": dict(variables)}
    (folder / STARTED).write_text(json.dumps(started, indent=1) + "\n")


def diagnose(folder: Path) -> Diagnosed:
    """Run the commands as the user of a finished job would, with the job's variables.

    Args:
        folder: of one run, with what ``remember`` wrote, output.txt and run/.
    """
    started = json.loads((folder / STARTED).read_text())
    inside, variables = Path(started["inside"]), {**os.environ, **started["variables"]}
    found = Diagnosed()
    files = [str(file) for file in named_files(started["words"], inside)]
    for arguments in (["--device", started["device"]], files):
        if arguments:
            _doctor(found, _command(["doctor", *arguments], inside, variables))
    logs = [str(folder / "output.txt"), *([str(folder / "run")] if any((folder / "run").glob("*.log")) else [])]
    for log in _command(["explain", *logs], inside, variables)["logs"]:
        name = Path(log["file"]).name
        found.alarms += [f"explain: {name}: {one['problem']}: {one['cause']}" for one in log["problems"]]
        found.alarms += [f"explain: {name}: error code {one['code']}" for one in log["codes"]]
        found.notes += [f"explain: {name}: last exception {one}" for one in log["last_exception"][:1]]
    run = _command(["status", str(folder / "run")], inside, variables)
    found.alarms += [f"status: {problem}" for problem in run["problems"]]
    for line in dict.fromkeys((folder / "output.txt").read_text(errors="replace").splitlines()):
        if "known problem: " in line or "known problem on NPUs: " in line:
            found.alarms.append(f"rehearsal: {line.strip()}")
        elif "note on NPUs: " in line:
            found.notes.append(f"rehearsal: {line.strip()}")
    return found


def named_files(words: Sequence[str], inside: Path) -> list[Path]:
    """Return the scripts and configurations that a command names, and those named in its shell scripts."""
    absolute = [word if word.startswith("-") else str(inside / word) for word in words]
    files = reading.named_files(absolute)
    for script in [file for file in files if file.suffix == ".sh"]:
        named = script.read_text(errors="replace").replace("\\\n", " ").replace('"', " ").split()
        files += reading.named_files([str(place / word) for word in named for place in (inside, script.parent)])
    return list(dict.fromkeys(files))


def report(name: str, found: Diagnosed) -> None:
    """Print the false alarms and the notes of a job."""
    print(f"{name}: {len(found.alarms)} false alarms, {len(found.notes)} notes")
    for line in [*(f"false alarm: {one}" for one in found.alarms), *(f"note: {one}" for one in found.notes)]:
        print(f"  {line[:400]}")
    sys.stdout.flush()


def _doctor(found: Diagnosed, diagnosis: Mapping[str, Any]) -> None:
    for one in diagnosis["findings"]:
        if not one["fixed_by"]:
            (found.alarms if one["must_fix"] else found.notes).append(f"doctor: {one['what']} — {one['why']}")


def _command(words: Sequence[str], inside: Path, variables: Mapping[str, str]) -> Any:
    """Return what a command of ascend-adapt prints as JSON.

    Raises:
        RuntimeError: it printed something else.
    """
    command = [sys.executable, "-m", "ascend_adapt.cli", *words, "--json"]
    ended = subprocess.run(command, cwd=inside, env=dict(variables), capture_output=True, text=True)
    try:
        return json.loads(ended.stdout)
    except ValueError:
        raise RuntimeError(f"ascend-adapt {' '.join(words)}: {ended.stderr.strip()}") from None


def main() -> int:
    """Diagnose all runs in the named folders."""
    runs = sorted({path.parent for word in sys.argv[1:] for path in Path(word).absolute().rglob(STARTED)})
    if not runs:
        print(f"{' '.join(sys.argv[1:])}: no {STARTED}, expected the folder of run.py --keep", file=sys.stderr)
        return 2
    alarms = notes = failed = 0
    for folder in runs:
        if code := json.loads((folder / "run" / "job.json").read_text())["exit_code"]:
            print(f"not diagnosed: {'/'.join(folder.parts[-3:])}: exit code {code}, expected a job that trained")
            failed += 1
            continue
        found = diagnose(folder)
        report("/".join(folder.parts[-3:]), found)
        alarms, notes = alarms + len(found.alarms), notes + len(found.notes)
    print(f"{len(runs) - failed} runs: {alarms} false alarms, {notes} notes")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
