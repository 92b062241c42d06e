"""One known problem, and the YAML files that declare them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement

from ascend_adapt.errors import PluginError

EVIDENCE = ("report", "maintainer", "source", "cpu", "emulated", "cuda", "hardware")
"""Evidence for a cause: a user's report, a maintainer's answer, upstream's source, or a reproduction."""

_REQUIRED = ("name", "cause", "do", "until", "source", "evidence")
_OPTIONAL = ("symptom", "near", "when", "general", "must_fix", "example", "healthy")
_READS = ("import", "after", "call", "with", "without", "setting")


@dataclass(frozen=True)
class Condition:
    """Facts that must hold together.

    Attributes:
        device: device kinds of the job.
        versions: installed distributions and their versions.
        missing: distributions that are not installed.
        environ: variables that are set, and what their values match.
        unset: variables that are not set, or empty.
        imports: a module that the user's files import.
        after: a module that the same file has imported before ``imports``.
        calls: a function that they call, by its full name; ``with_`` and ``without`` are keywords of that call, with
            what their values match, and keywords that it lacks.
        settings: options of their configuration, arguments or command lines, and what the values match.
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

    @property
    def distributions(self) -> tuple[str, ...]:
        """Distributions whose versions the condition depends on."""
        return (*(one.name for one in self.versions), *self.missing)

    @property
    def reads_files(self) -> bool:
        """Whether the condition depends on the user's own files."""
        return bool(self.imports or self.calls or self.settings)


@dataclass(frozen=True)
class Problem:
    """A known problem.

    Attributes:
        symptom: patterns, one of which a log shows.
        near: pattern close to the symptom, such as a frame of its traceback.
        when: without a symptom, the condition that predicts it; with one, a condition that must not be known to be
        false.
        cause: one sentence; ``{name}`` is a named group of the patterns.
        do: the next step.
        until: the release that fixes it.
        source: addresses of reports or documentation.
        evidence: the source of the cause.
        general: reported only if no specific problem explains the same lines.
        must_fix: whether the job fails or computes something other than what was requested.
        example: a text or facts that it matches; ``healthy``: similar ones that it must not match.
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
        PluginError: the file cannot be read, or a declaration is invalid; lists all faults.
    """
    try:
        data = yaml.load(file.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
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
    )


def _line(entry: Mapping[str, Any], key: str) -> str:
    return " ".join(str(entry.get(key, "")).split())


def _list(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
