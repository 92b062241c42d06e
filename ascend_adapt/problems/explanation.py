"""Finds known problems: those that a log shows, and those that installation and files predict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ascend_adapt.problems import literals
from ascend_adapt.problems.facts import Facts
from ascend_adapt.problems.log_text import Frame, LogText
from ascend_adapt.problems.problem import Problem

_BEFORE, _AFTER = 120, 40
_LONGEST_LINE = 240
_NEVER_CALLERS = ("", "torch", "torch_npu")
"""Packages whose frames lie between the calling code and what fails; "" is Python itself."""


@dataclass(frozen=True)
class Found:
    """A known problem that was found.

    Attributes:
        problem: the problem.
        cause: the cause, with names from the log filled in.
        do: the next step.
        shown_by: the facts or lines that indicate the problem.
        line: line number in the log, or 0.
        count: number of lines that show the problem.
        frames: the last frame of the traceback, and the last frame outside of installed packages.
        must_fix: whether the job fails, or computes something other than requested.
    """

    problem: Problem
    cause: str
    do: str
    shown_by: tuple[str, ...]
    line: int = 0
    count: int = 1
    frames: tuple[Frame, ...] = ()
    must_fix: bool = True

    def last_lines(self) -> list[str]:
        """Return the lines that are printed at the end of a failed job."""
        called = f" (called from {self.frames[-1]})" if self.frames else ""
        return [f"cause: {self.cause}{called}", f"next step: {self.do}"]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {
            "problem": self.problem.name,
            "cause": self.cause,
            "do": self.do,
            "shown_by": list(self.shown_by),
            "line": self.line,
            "frames": [str(one) for one in self.frames],
            "until": self.problem.until,
            "source": list(self.problem.source),
            "evidence": self.problem.evidence,
        }


def explain(log: LogText, problems: Iterable[Problem], facts: Facts) -> list[Found]:
    """Return the problems that a log shows, in log order.

    General problems are returned only if no specific one matches. If two specific problems match a line, the one that
    also matches its context is returned.
    """
    found = [one for problem in problems if (one := _in_log(log, problem, facts)) is not None]
    in_context = {one.line for one in found if one.problem.near is not None and not one.problem.general}
    found = [one for one in found if one.problem.near or one.problem.general or one.line not in in_context]
    specific = {index for one in found if not one.problem.general for index in range(one.line - 30, one.line + 31)}
    kept = [one for one in found if not one.problem.general or one.line not in specific]
    return sorted(kept, key=lambda one: one.line)


def predict(problems: Iterable[Problem], facts: Facts) -> list[Found]:
    """Return the problems without a symptom whose condition holds; a symptom is only found in a log.

    A note is left out if files meet its condition only in branches that an option may switch off.
    """
    return [
        Found(
            problem,
            _filled(problem.cause, {}),
            _filled(problem.do, {}),
            tuple(facts.evidence_of(problem.when)),
            must_fix=problem.must_fix and facts.is_certain(problem.when),
        )
        for problem in problems
        if problem.when is not None
        and not problem.symptom
        and facts.known_true(problem.when)
        and (problem.must_fix or facts.is_certain(problem.when))
    ]


def _in_log(log: LogText, problem: Problem, facts: Facts) -> Found | None:
    if problem.when is not None and facts.known_false(problem.when):
        return None
    matches: list[tuple[int, int, dict[str, str]]] = []
    for pattern in problem.symptom:
        for match in literals.matches(pattern, log.text):
            index = log.index(match.start())
            if log.is_handled(index):
                continue
            groups = {name: text for name, text in match.groupdict().items() if text}
            if problem.near is not None:
                near = problem.near.search(log.around(index, _BEFORE, _AFTER))
                if near is None:
                    continue
                groups |= {name: text for name, text in near.groupdict().items() if text}
            matches.append((index, match.start(), groups))
    if not matches:
        return None
    index, offset, groups = min(matches, key=lambda one: one[0])
    frames = [one for one in log.frames(index) if not one.is_import_hook]
    packages = _packages(frames, groups)
    versions = {placeholder: _with_version(name, facts) for placeholder, name in packages.items()}
    lines = {place for place, _, _ in matches}
    return Found(
        problem,
        _filled(problem.cause, groups | versions),
        _filled(problem.do, groups | packages),
        (log.shown(offset, _LONGEST_LINE),),
        log.number(index),
        len(lines),
        last_frames(frames),
    )


def last_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the last frame, and the last frame in the user's code if that differs."""
    own = [one for one in frames if not one.is_package]
    return tuple(dict.fromkeys([*frames[-1:], *own[-1:]]))


def _packages(frames: Sequence[Frame], groups: dict[str, str]) -> dict[str, str]:
    """Return the values of placeholders: the package that failed, and that of a named module, without versions."""
    words = {}
    callers = [one for one in frames if not one.is_package or one.package not in _NEVER_CALLERS]
    if callers and callers[-1].package:
        words["caller"] = callers[-1].package
    if module := groups.get("module"):
        words["package"] = module.partition(".")[0]
    return words


def _with_version(name: str, facts: Facts) -> str:
    version = facts.version(name)
    return f"{name} {version}" if version else name


def _filled(text: str, groups: dict[str, str]) -> str:
    words = {"caller": "the code", "package": groups.get("module", "").partition(".")[0], **groups}
    return " ".join(re.sub(r"\{(\w+)\}", lambda match: words.get(match[1], ""), text).split())
