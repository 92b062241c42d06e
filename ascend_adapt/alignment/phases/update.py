"""The update of one parameter in an optimizer's step, in both runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ascend_adapt.alignment import bounds
from ascend_adapt.alignment.findings import Finding
from ascend_adapt.alignment.phases.step import Step, owner
from ascend_adapt.alignment.step_view import WeightKey
from ascend_adapt.alignment.values import Value


@dataclass(frozen=True)
class Update:
    """The update of one parameter by the same optimizer in both runs."""

    step: Step
    key: tuple[int, int, str]
    """The optimizer, and the root and name of the parameter. The root of a flat buffer of weights is negative."""
    mine: dict[str, Any]
    """The update as A's first rank recorded it."""
    theirs: dict[str, Any]
    """The update as B's first rank recorded it."""

    @property
    def name(self) -> WeightKey:
        """Root and name of the parameter."""
        return self.key[1:]

    def both_have(self, part: str) -> bool:
        """Return whether both runs recorded this part."""
        return part in self.mine and part in self.theirs

    def sides(self, part: str, state: str | None = None) -> tuple[Value | None, Value | None]:
        """Return one tensor from both runs: "gradient", "before", "after", or "state" with the name of the state."""
        one, other = (
            side.value([_tensor(line, part, state) for line in side.updates[self.key]])
            for side in (self.step.pair.a, self.step.pair.b)
        )
        return one, other

    def finding(self, phase: str, what: str, error: float, allowed: float, *details: str) -> Finding:
        """Return a finding at the module that owns the parameter."""
        root, name = self.name
        at = (root, name, 0, False) if root < 0 else owner(self.name)
        return self.step.finding(phase, at, what, error, allowed, *details)

    def is_other_partition(self) -> bool:
        """Return whether a flat buffer holds different weights in the two runs; note that it is not compared."""
        if self.name[0] >= 0 or not self.both_have("before"):
            return False
        pair, name = self.step.pair, self.name[1]
        one, other = self.sides("before")
        apart = pair.compared(one, other, name)
        if apart is None or one is None or other is None:
            return True
        known = max(pair.weights_together, self.step.group.states.get((self.key, "after"), 0.0))
        if apart <= bounds.elementwise({one.dtype, other.dtype}) + bounds.GAIN * known:
            return False
        pair.uncompared.add(f"optimizer's {name}")
        return True


def _tensor(line: dict[str, Any], part: str, state: str | None) -> dict[str, Any]:
    """Return the entry of a tensor; empty if this rank did not record it."""
    found: dict[str, Any] = line.get(part, {})
    return found if state is None else found.get(state, {})


def updates_of(step: Step) -> list[Update]:
    """Return the updates of weights that both runs updated."""
    ours, theirs = step.pair.a.updates, step.pair.b.updates
    updates = [Update(step, key, mine[0], theirs[key][0]) for key, mine in ours.items() if key in theirs]
    return [each for each in updates if not each.is_other_partition()]
