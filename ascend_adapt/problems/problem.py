"""One known problem, and the YAML files that declare them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement

from ascend_adapt import regular_files
from ascend_adapt.errors import PluginError

EVIDENCE = ("report", "maintainer", "source", "cpu", "emulated", "cuda", "hardware")
"""Kinds of evidence for a cause: a user's report, a maintainer's answer, upstream's source, or a reproduction."""

_REQUIRED = ("name", "cause", "do", "until", "source", "evidence")
_OPTIONAL = ("symptom", "near", "when", "general", "must_fix", "example", "healthy")
_READS = ("import", "after", "call", "with", "without", "setting", "lacks")


@dataclass(frozen=True)
class Condition:
    """A condition: facts that must all hold.

    Attributes:
        device: device kinds of the job, any of which meets the condition.
        versions: installed distributions and their versions.
        missing: distributions that are not installed.
        environ: variables that are set, with the pattern that each value matches.
        unset: variables that are not set or are empty.
        imports: a module that the user's files import.
        after: a module that the same file imports before ``imports``.
        calls: the full name of a function that the files call. ``with_`` has keywords of that call, with the pattern
            that each value matches; ``without`` has keywords that the call lacks.
        settings: options in the files' configuration, arguments or command lines, with the pattern that each value
            matches.
        lacks: options that the files do not set.
    """

    device: tuple[str, ...] = ()
    versions: tuple[Requirement, ...] = ()
    missing: tuple[str, ...] = ()
    environ: Mapping[str, re.Pattern[str]] | None = None
    unset: tuple[str, ...] = ()
    imports: re.Pattern[str] | None = None
    after: re.Pattern[str] | None = None
    calls: re.Pattern[str] | None = None
    with_: tuple[tuple[str, re.Pattern[str]], ...] = ()
    without: tuple[str, ...] = ()
    settings: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def distributions(self) -> tuple[str, ...]:
        """The distributions on whose versions the condition depends."""
        return (*(one.name for one in self.versions), *self.missing)

    @property
    def reads_files(self) -> bool:
        """Whether the condition depends on the user's files."""
        return bool(self.imports or self.calls or self.settings)


@dataclass(frozen=True)
class Problem:
    """A known problem.

    Attributes:
        symptom: patterns, at least one of which matches the log.
        near: a pattern that matches close to the symptom, such as in a frame of its traceback.
        when: without a symptom, the condition that predicts the problem; with a symptom, a condition that must not be
            known to be false.
        cause: one sentence, in which ``{name}`` stands for a named group of the patterns.
        do: the next step.
        until: the release that fixes the problem.
        source: addresses of reports or documentation.
        evidence: the kind of evidence for the cause.
        general: reported only if no specific problem explains the same lines.
        must_fix: whether the job fails, or computes something other than requested.
        example: a text or facts that the problem matches; ``healthy`` has similar ones that it must not match.
    """

    name: str
    cause: str
    do: str
    until: str
    source: tuple[str, ...]
    evidence: str
    symptom: tuple[re.Pattern[str], ...] = ()
    near: re.Pattern[str] | None = None
    when: Condition | None = None
    general: bool = False
    must_fix: bool = True
    example: Any = ""
    healthy: Any = ""


def read(file: Path) -> list[Problem]:
    """Return the problems that a YAML file declares.

    Raises:
        PluginError: the file cannot be read, or declarations are invalid; the message lists all faults.
    """
    try:
        data = yaml.load(regular_files.read_text(file), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise PluginError(f"{file}: {' '.join(str(error).split())}, expected YAML — correct the file") from error
    faults: list[str] = []
    problems = [one for entry in _list(data) if (one := _problem(entry, faults)) is not None]
    if faults:
        raise PluginError(f"{file}: {'; '.join(faults)} — correct the file")
    return problems


def _problem(entry: Any, faults: list[str]) -> Problem | None:
    if not isinstance(entry, Mapping):
        faults.append(f"{entry!r}: expected a mapping")
        return None
    name = str(entry.get("name", "an unnamed problem"))
    wrong = [f"{key} is missing" for key in _REQUIRED if not entry.get(key)]
    wrong += [f"{key} is unknown" for key in entry if key not in (*_REQUIRED, *_OPTIONAL)]
    if entry.get("evidence") not in EVIDENCE:
        wrong.append(f"evidence {entry.get('evidence')!r}: expected one of {', '.join(EVIDENCE)}")
    if not entry.get("symptom") and not entry.get("when"):
        wrong.append("expected symptom, when, or both")
    try:
        problem = Problem(
            name,
            _line(entry, "cause"),
            _line(entry, "do"),
            _line(entry, "until"),
            tuple(map(str, _list(entry.get("source")))),
            str(entry.get("evidence")),
            symptom=tuple(re.compile(str(text), re.MULTILINE) for text in _list(entry.get("symptom"))),
            near=re.compile(str(entry["near"]), re.MULTILINE) if entry.get("near") else None,
            when=_condition(entry["when"]) if entry.get("when") else None,
            general=bool(entry.get("general", False)),
            must_fix=bool(entry.get("must_fix", True)),
            example=entry.get("example", ""),
            healthy=entry.get("healthy", ""),
        )
    except (re.error, InvalidRequirement, TypeError, AttributeError, ValueError) as error:
        wrong.append(" ".join(str(error).split()))
    if wrong:
        faults.extend(f"{name}: {text}" for text in wrong)
        return None
    return problem


def _condition(entry: Mapping[str, Any]) -> Condition:
    known = ("device", "versions", "missing", "environ", "unset", "reads")
    reads: Mapping[str, Any] = entry.get("reads") or {}
    unknown = [key for key in entry if key not in known] + [key for key in reads if key not in _READS]
    if unknown:
        raise ValueError(f"when: {', '.join(unknown)} unknown, expected {', '.join((*known, *_READS))}")
    return Condition(
        device=tuple(map(str, _list(entry.get("device")))),
        versions=tuple(Requirement(str(text)) for text in _list(entry.get("versions"))),
        missing=tuple(map(str, _list(entry.get("missing")))),
        environ={str(key): re.compile(str(value)) for key, value in (entry.get("environ") or {}).items()},
        unset=tuple(map(str, _list(entry.get("unset")))),
        imports=re.compile(str(reads["import"])) if "import" in reads else None,
        after=re.compile(str(reads["after"])) if "after" in reads else None,
        calls=re.compile(str(reads["call"])) if "call" in reads else None,
        with_=tuple((str(key), re.compile(str(value))) for key, value in reads.get("with", {}).items()),
        without=tuple(map(str, _list(reads.get("without")))),
        settings=tuple(
            (re.compile(str(key)), re.compile(str(value))) for key, value in reads.get("setting", {}).items()
        ),
        lacks=tuple(map(str, _list(reads.get("lacks")))),
    )


def _line(entry: Mapping[str, Any], key: str) -> str:
    return " ".join(str(entry.get(key, "")).split())


def _list(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
