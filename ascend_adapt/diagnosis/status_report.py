"""Status report: the outcome of each patch in a job, for the installation, or for a source tree."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from ascend_adapt import probe, regular_files, terminal
from ascend_adapt.diagnosis import evidence
from ascend_adapt.errors import AdaptError, SettingsError
from ascend_adapt.json_shapes import STRING, is_a, list_of, map_of, of_types, record
from ascend_adapt.patches.declare.outcome import BAD_STATES, STATES, Outcome
from ascend_adapt.patches.judge import static
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.runtime import agreement, code_bases, settings
from ascend_adapt.runtime.plugin_manager import PluginManager
from ascend_adapt.whole_numbers import whole_number

_COLOURS = {"applied": "green", "armed": "cyan", **dict.fromkeys(BAD_STATES, "red")}
_UNPROVED = "none for these versions"
IN_WORDS = {
    "not_needed": "not needed",
    "skipped": "for another device, version or code base",
}


_STRINGS = list_of(STRING)
_OUTCOME = record(
    {
        **dict.fromkeys(("patch", "plugin", "target", "reason", "requires", "found"), STRING),
        "state": is_a("a state of a patch", lambda value: value in STATES),
        "evidence": _STRINGS,
    },
    dict.fromkeys(("why", "until", "without"), STRING),
)
_FACTS = map_of(map_of(STRING))
_STATUS = record(
    {
        "rank": of_types("a number, or null", int, type(None)),
        **dict.fromkeys(("device", "device_reason"), STRING),
        "outcomes": list_of(_OUTCOME),
        "facts": lambda value, place: chain(
            is_a("facts of at least one moment", bool)(value, place), _FACTS(value, place)
        ),
    },
    {
        **dict.fromkeys(("problems", "beside", "programs"), _STRINGS),
        "since": of_types("a time", int, float),
        "until": of_types("a time, or null", int, float, type(None)),
    },
)
"""What a rank writes to adapt-status.<rank>.json, and a program without ranks to adapt-status.p<pid>.json."""


class NoStatus(AdaptError):
    """A run directory has no status file, or an invalid one."""


@dataclass(frozen=True)
class Report:
    """Status report: outcomes, and what they are about.

    If there are ``problems``, the command fails. ``predicted``: the outcomes are expected, not observed. ``failure``:
    which rank of the job failed first, why, and the next step.
    """

    subject: str
    outcomes: tuple[Outcome, ...]
    problems: tuple[str, ...] = ()
    predicted: bool = False
    failure: tuple[str, ...] = ()

    @property
    def applying(self) -> tuple[Outcome, ...]:
        """Outcomes of patches that are applied, or will be applied when their target is imported."""
        if self.predicted:
            return tuple(one for one in self.outcomes if one.state == "armed" and not one.reason)
        return tuple(one for one in self.outcomes if one.state == "applied")

    @property
    def bad(self) -> tuple[Outcome, ...]:
        """Outcomes of patches that need attention."""
        return tuple(one for one in self.outcomes if one.state in BAD_STATES)

    def summary(self) -> str:
        """Return the counts on one line, such as ``172 patches: 26 would be applied, 146 for another device, ...``."""
        counts = {"would be applied" if self.predicted else "applied": len(self.applying)}
        if self.bad:
            counts["NEED ATTENTION"] = len(self.bad)
        listed = {id(one) for one in (*self.applying, *self.bad)}
        others = Counter(one.state for one in self.outcomes if id(one) not in listed)
        counts |= {IN_WORDS.get(state, state): others[state] for state in STATES if others[state]}
        return f"{len(self.outcomes)} patches: " + ", ".join(f"{number} {words}" for words, number in counts.items())

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "subject": self.subject,
            "outcomes": [vars(outcome) for outcome in self.outcomes],
            "problems": list(self.problems),
            "failure": list(self.failure),
        }


def of_installation(upstream: Path | None = None, environ: Mapping[str, str] = os.environ) -> Report:
    """Return the expected outcome of each patch for the installation, or for the source tree ``upstream``.

    No target is imported. ``environ`` has the settings, such as ASCEND_ADAPT_DEVICE.

    Raises:
        SettingsError: ``upstream`` is not a folder.
    """
    if upstream is not None and not upstream.is_dir():
        raise SettingsError(
            f"--upstream {upstream}: is not a folder, expected an unpacked source tree — correct the path"
        )
    wanted = settings.resolve(environ)
    device, reason = probe.device_to_use(wanted.device, environ)
    manager = PluginManager.of(wanted)
    patches = manager.patches()
    known, usable = manager.hosts(patches, code_bases.KNOWN)
    tree = SourceTree(upstream) if upstream is not None else None
    if tree is not None and not any(tree.folder(one.patch.target.root) for one in usable):
        raise SettingsError(
            f"--upstream {upstream}: contains no package that a patch targets — pass the folder that "
            "contains the package"
        )
    manager.check_names(wanted.disable, wanted.allowed_plugins, wanted.allow_drift)
    outcomes = static.judge(usable, device=device, hosts=known, tree=tree)
    if settings.is_off(environ):
        outcomes = tuple(replace(outcome, state="disabled", reason="ASCEND_ADAPT=0") for outcome in outcomes)
    outcomes = tuple(
        replace(outcome, state="disabled", reason="by the user") if one.is_named(wanted.disable) else outcome
        for one, outcome in zip(usable, outcomes, strict=True)
    )
    versions = {name: version for name in ("torch", "torch_npu") if (version := probe.distribution_version(name))}
    outcomes, damaged = _with_evidence(outcomes, versions)
    problems = [*manager.problems, *static.conflicts(usable, outcomes), *damaged]
    where = f"the source tree {upstream}" if upstream is not None else "the installed packages"
    subject = f"predicted from {where}, nothing imported; device {device} ({reason})"
    return Report(subject, outcomes, tuple(problems), predicted=True)


def of_run(run_dir: Path) -> Report:
    """Return the outcome of each patch in a job. Ranks that differ from the first rank are reported as problems.

    Files that cannot be read are reported as problems, too. Of a job without ranks, the outcomes of its programs are
    combined.

    Raises:
        NoStatus: the folder has no status file that can be read.
    """
    damaged: list[str] = []
    job = _job(run_dir, damaged)
    failure, unreached = _failure(run_dir, job.get("failure", [])), job.get("unreached", [])
    found = records(run_dir, damaged)
    if not found and (unreached or failure):
        return Report(f"no status: no rank of {run_dir} was reached", (), (*unreached, *damaged), failure=failure)
    if not found and job and not damaged:
        return Report(f"no status: no process of {run_dir} has imported a package that has patches", ())
    if not found:
        what = "has no adapt-status.<rank>.json" if run_dir.is_dir() else "is not a folder"
        nothing = f"{run_dir}: {what}, expected a run directory — pass the one that ascend-run printed"
        raise NoStatus("\n".join(damaged) or nothing)
    first = found[0]
    ranks = {data["rank"]: data for data in found if data["rank"] is not None}
    shown = [first] if ranks else found
    facts = {rank: data["facts"] for rank, data in ranks.items() if agreement.met(first, data)}
    problems = [
        *_each_once(shown, "problems"),
        *(_with_reason(one, ranks[one.rank]["outcomes"]) for one in agreement.differences(facts)),
        *unreached,
        *damaged,
    ]
    kind = "rank" if ranks else "program"
    number = f"1 {kind}" if len(found) == 1 else f"{len(found)} {kind}s"
    # With ASCEND_ADAPT=0, no device is recorded.
    where = f"device {first['device']} ({first['device_reason']})" if first["device"] else "not adapted"
    subject = f"status of {number} in {run_dir}; {where}"
    if beside := _each_once(shown, "beside"):
        subject += f"; together with {', '.join(beside)}"
    subject += "".join(f"; {program}" for program in _each_once(shown, "programs"))
    combined = first["outcomes"] if ranks else _combined(found)
    outcomes, unusable = _with_evidence(combined, list(first["facts"].values())[-1])
    return Report(subject, outcomes, (*problems, *unusable), failure=failure)


def records(run_dir: Path, damaged: list[str] | None = None) -> list[dict[str, Any]]:
    """Return the status of each rank in order or, without ranks, of each program in the order of their start.

    What cannot be read is left out, and reported in ``damaged``.
    """
    ranks: list[dict[str, Any]] = []
    programs: list[dict[str, Any]] = []
    for file in sorted(run_dir.glob("adapt-status.*.json")):
        name = file.suffixes[0][1:]
        if whole_number(name.removeprefix("p")) is None:
            continue
        try:
            data = json.loads(regular_files.read_text(file))
            if fault := next(_STATUS(data, ""), ""):
                raise ValueError(fault)
            data["outcomes"] = tuple(_outcome(outcome) for outcome in data["outcomes"])
            (programs if data["rank"] is None else ranks).append(data)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            if damaged is not None:
                damaged.append(f"{file}: is not a status file ({error}) — remove it")
    by_rank = {data["rank"]: data for data in ranks}
    programs.sort(key=lambda data: data.get("since", 0.0))
    # A restart begins another job in the same folder.
    last = [data for data in programs if data.get("job") == programs[-1].get("job")]
    return [by_rank[rank] for rank in sorted(by_rank)] or last


def _combined(programs: Sequence[Mapping[str, Any]]) -> tuple[Outcome, ...]:
    """Return the outcome of each patch in the program where it needs attention, else in one that applied it."""
    by_name: dict[str, Outcome] = {}
    for outcome in chain.from_iterable(program["outcomes"] for program in programs):
        known = by_name.setdefault(full_name(outcome), outcome)
        if _importance(outcome) > _importance(known):
            by_name[full_name(outcome)] = outcome
    return tuple(by_name.values())


def _each_once(status: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(one.get(name, ()) for one in status)))


def _importance(outcome: Outcome) -> int:
    return 2 if outcome.state in BAD_STATES else int(outcome.state == "applied")


def _with_evidence(outcomes: Sequence[Outcome], versions: Mapping[str, str]) -> tuple[tuple[Outcome, ...], list[str]]:
    """Add the evidence for the found versions and ``versions`` to each outcome; also return errors in files."""
    records, problems = evidence.known(os.environ)
    proved = []
    for outcome in outcomes:
        found = {**versions, **dict(text.rsplit(" ", 1) for text in outcome.found.split(", ") if " " in text)}
        proved.append(replace(outcome, evidence=evidence.matching(records, full_name(outcome), found)))
    return tuple(proved), problems


def _with_reason(difference: agreement.Difference, outcomes: tuple[Outcome, ...]) -> str:
    reasons = [one.reason for one in outcomes if difference.fact in agreement.states([one]) and one.reason]
    return f"{difference} (rank {difference.rank}: {reasons[0]})" if reasons else str(difference)


def _failure(run_dir: Path, lines: Sequence[str]) -> tuple[str, ...]:
    """Return the launcher's lines about the failure of a job. Without a known cause, add where to look next."""
    if not lines or any(line.startswith("next step: ") for line in lines):
        return tuple(lines)
    return (*lines, f"next step: `ascend-adapt explain {run_dir}` prints the last exception of each rank's log")


def _job(run_dir: Path, damaged: list[str]) -> dict[str, list[str]]:
    """Return the failure and the unreached processes in the launcher's job file; {} if there is none.

    If it cannot be read, append that to ``damaged``.
    """
    file = run_dir / "job.json"
    try:
        job = json.loads(regular_files.read_text(file))
        return {name: [str(text) for text in job.get(name, ())] for name in ("failure", "unreached")}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        damaged.append(f"{file}: is not a job file ({error}) — remove it")
        return {}


def _outcome(data: dict[str, Any]) -> Outcome:
    return Outcome(**{**data, "evidence": tuple(data["evidence"])})


def show(report: Report, *, short: bool = False, all_: bool = False) -> None:
    """Print the counts, then each patch that is applied or needs attention; a shared reason is printed once.

    With ``short``, and for a failed job, print only patches that need attention, so that the failure stays in sight.
    With ``all_``, print every patch with requirements, versions and evidence. Lines are not wrapped in a pipe.
    """
    from rich.text import Text

    # Patches that need attention come first, the others in the order of application.
    others = [one for one in report.outcomes if one.state not in BAD_STATES] if all_ else report.applying
    shown = [*report.bad, *(() if short or (report.failure and not all_) else others)]
    terminal.line(report.summary(), "bold")
    terminal.line(report.subject)
    for line in report.failure:
        terminal.line(line, "red")
    name_width = max((len(full_name(one)) for one in shown), default=0)
    state_width = max((len(one.state) for one in shown), default=0)
    for number, one in enumerate(shown, 1):
        style = _COLOURS.get(one.state, "")
        head = Text(f"{full_name(one):{name_width}}  ").append(f"{one.state:{state_width}}", style)
        terminal.line(head.append(f"  {one.target}"))
        if not all_ and number < len(shown) and _why(one) == _why(shown[number]):
            continue
        if one.reason:
            terminal.line(f"    {one.reason}")
        if one.why:
            terminal.line(f"    {one.without} without it: {one.why}")
        if all_:
            facts = (one.requires, one.found and f"found {one.found}", one.until and f"until {one.until}")
            terminal.line("    " + "; ".join((*filter(None, facts), _evidence(one))), "dim")
    if len(shown) < len(report.outcomes):
        terminal.line("--all shows every patch, with its versions and evidence", "dim")


def _why(outcome: Outcome) -> tuple[str, str, str]:
    return outcome.reason, outcome.without, outcome.why


def _evidence(outcome: Outcome) -> str:
    return "evidence " + (", ".join(outcome.evidence) or _UNPROVED)


def full_name(outcome: Outcome) -> str:
    """Return the full name of a patch: plugin.patch."""
    return f"{outcome.plugin}.{outcome.patch}"
