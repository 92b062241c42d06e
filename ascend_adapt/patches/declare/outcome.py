"""Outcomes of patches, and the status of a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

STATES = (
    "armed",  # the target is not imported yet
    "applied",
    "not_needed",  # the version is in range, but the target does not have the fault
    "skipped",  # the patch is for another version, code base or device
    "disabled",  # the user has disabled the patch
    "drifted",  # the target is missing or has changed
    "failed",  # applying the patch raised an error
    "lost",  # the target was reloaded or replaced after the patch was applied
    "reverted",
)
BAD_STATES = ("drifted", "failed", "lost")


@dataclass(frozen=True)
class Outcome:
    """Outcome of one patch: its state and the reason.

    ``requires`` and ``found`` are strings such as ``deepspeed>=0.19`` and ``deepspeed 0.19.8``. ``evidence`` lists the
    evidence records for the installed versions. ``why``, ``until`` and ``without`` are copied from the declaration:
    what breaks without the patch, when it can be deleted, and ``crash``, ``wrong numbers`` or ``slower``.
    """

    patch: str
    plugin: str
    target: str
    state: str
    reason: str
    requires: str
    found: str
    reversible: bool
    evidence: tuple[str, ...] = ()
    why: str = ""
    until: str = ""
    without: str = ""


@dataclass(frozen=True)
class Status:
    """Status of this process: the outcomes of all patches, in the order in which they apply.

    ``device`` is the detected or requested device kind and ``device_reason`` the reason; ``problems`` has one message
    for each unusable plugin; ``beside`` has the names of the third-party patchers that this process has loaded.
    ``programs`` has one sentence for each plugin that adapted programs without patches.
    """

    outcomes: tuple[Outcome, ...] = ()
    device: str = ""
    device_reason: str = ""
    problems: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{one.plugin}.{one.patch}: {one.state}" + (f" ({one.reason})" if one.reason else "")
            for one in self.outcomes
        ]
        return "\n".join([*lines, *self.programs, *self.problems]) or "no patches"

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)

    def __getitem__(self, patch: str) -> Outcome:
        """Return the outcome of the patch with this name (``name`` or ``plugin.name``)."""
        for outcome in self.outcomes:
            if patch in (outcome.patch, f"{outcome.plugin}.{outcome.patch}"):
                return outcome
        raise KeyError(patch)

    def summary(self) -> str:
        """Return a line such as ``3 applied, 1 skipped``."""
        counts = Counter(outcome.state for outcome in self.outcomes)
        return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]) or "no patches"

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain data."""
        return {
            "device": self.device,
            "device_reason": self.device_reason,
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
            "problems": list(self.problems),
            "beside": list(self.beside),
            "programs": list(self.programs),
        }
