"""Findings and the report of a comparison: where two runs diverge, or how closely they agree."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

PHASES = ("batch", "weights", "forward", "recomputation", "backward", "gradients", "optimizer")
"""The phases of a step, in the order of training."""
SCRIPT = "the script"


@dataclass(frozen=True)
class Finding:
    """Where two runs diverge: the step, the phase, the module, and what differs there."""

    step: int
    phase: str
    module: str
    what: str
    error: float
    allowed: float
    rank: int = 0
    call: int = 0
    details: tuple[str, ...] = ()
    replayable: bool = False
    """Whether a replay of the module from its inputs reproduces the difference."""
    moment: int = 0
    """Row of A's first differing tensor in the step; rows are in the order of time."""


@dataclass
class Report:
    """The result of a comparison."""

    findings: list[Finding] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    largest: dict[str, tuple[float, str]] = field(default_factory=dict)
    """The largest difference of each phase, and its location, if no difference exceeded its bound."""

    @property
    def first(self) -> Finding | None:
        """The first divergence of the runs."""
        order = {phase: number for number, phase in enumerate(PHASES)}
        return min(
            self.findings,
            key=lambda one: (one.step, order[one.phase], one.module.startswith(SCRIPT), one.rank),
            default=None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data, in which an infinite difference is null."""
        findings = [
            {key: None if value == math.inf else value for key, value in asdict(one).items()} for one in self.findings
        ]
        first = self.first
        return {
            "agree": first is None,
            "first": findings[self.findings.index(first)] if first is not None else None,
            "findings": findings,
            "steps": self.steps,
            "notes": self.notes,
            "largest": {phase: {"error": error, "at": where} for phase, (error, where) in self.largest.items()},
        }

    def note(self, text: str) -> None:
        """Add a note, unless the report has it already."""
        if text not in self.notes:
            self.notes.append(text)

    def keep_largest(self, phase: str, error: float, where: str) -> None:
        """Keep a difference if it is the largest of its phase so far."""
        if error > self.largest.get(phase, (0.0, ""))[0]:
            self.largest[phase] = (error, where)
