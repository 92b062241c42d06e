"""What became of each patch, as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

STATES = (
    "armed",  # the target is not imported yet
    "applied",
    "not_needed",  # version in range, but the target already behaves
    "skipped",  # version, host or device says no
    "disabled",  # by the user
    "drifted",  # the target is missing or changed: never created, never guessed
    "failed",  # applying raised
    "lost",  # the target was reloaded or replaced after apply
    "reverted",
)
BAD_STATES = ("drifted", "failed", "lost")


@dataclass(frozen=True)
class Outcome:
    """What became of one patch.

    ``requires`` and ``found`` are texts such as ``deepspeed>=0.19`` and ``deepspeed 0.19.8``; ``evidence`` holds the
    evidence records for the versions at hand, and is empty when there are none for these versions. ``why``, ``until``
    and ``without`` are what the patch declares: what breaks without it, when it can be deleted, and ``crash``, ``wrong
    numbers`` or ``slower``.
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
    """The outcomes of all patches, in the order in which they apply.

    ``device`` is what this process is judged to run on and ``device_reason`` how that was told; ``problems`` are
    plugins that could not be used, one paragraph each; ``beside`` names the other patchers that
    this process has loaded.
    """

    outcomes: tuple[Outcome, ...] = ()
    device: str = ""
    device_reason: str = ""
    problems: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{one.plugin}.{one.patch}: {one.state}" + (f" ({one.reason})" if one.reason else "")
            for one in self.outcomes
        ]
        return "\n".join([*lines, *self.problems]) or "no patches"

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
        }
