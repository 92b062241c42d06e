"""One step of both runs, as each phase sees it."""

from __future__ import annotations

from dataclasses import dataclass

from ascend_adapt.alignment.findings import SCRIPT, Finding, Report
from ascend_adapt.alignment.rank_groups import RankGroup
from ascend_adapt.alignment.step_view import Key, Pair, WeightKey


@dataclass
class Step:
    """One step of one rank in both runs. Describes findings in the step."""

    number: int
    pair: Pair
    group: RankGroup
    report: Report
    forward_error: float = 0.0
    """The difference at the end of the forward pass."""

    def finding(
        self,
        phase: str,
        key: Key | None,
        what: str,
        error: float,
        allowed: float,
        *details: str,
        replay: bool = False,
        moment: int = 0,
    ) -> Finding:
        """Return a finding at a call, or outside all modules if ``key`` is None."""
        name, call, settings = (SCRIPT, 0, []) if key is None else (self.name(key), key[2], self._settings(key))
        more = (*details, *settings, *self._random_states())
        return Finding(self.number, phase, name, what, error, allowed, self.group.rank, call, more, replay, moment)

    def finding_at(
        self,
        phase: str,
        around: Key | None,
        what: str,
        error: float,
        allowed: float,
        tensor: tuple[Key, str, str],
        of: str = "row",
    ) -> Finding:
        """Return a finding at a call, with the tensor (call, "inputs" or "outputs", path) or gradient that shows it."""
        key, part, path = tensor
        moment = int(self.pair.a.tensors(key, part)[path][0].get(of) or 0)
        both, replay = self.both(key, part, path, of), around is not None
        return self.finding(phase, around, what, error, allowed, *both, replay=replay, moment=moment)

    def keep_largest(self, phase: str, error: float, where: str) -> None:
        """Keep a difference for the report if it is the largest of its phase."""
        self.report.keep_largest(phase, error, f"{where}, step {self.number}")

    def name(self, key: Key) -> str:
        """Return the name of a call's module for display."""
        described = self.group.ours[0].modules.get(key[:2], {})
        return key[1] or described.get("class", "the model")

    def both(self, key: Key, part: str, path: str, of: str = "row") -> tuple[str, ...]:
        """Return one line for each run, which shows a tensor or its gradient."""
        sides = ((name, side, side.tensors(key, part)[path]) for name, side in (("A", self.pair.a), ("B", self.pair.b)))
        return tuple(f"{name}: {side.value(entries, of) or 'none'}" for name, side, entries in sides)

    def note_structure(self) -> None:
        """Add notes about modules and weights that only one run has."""
        for side, other, name in ((self.pair.a, self.pair.b, "A"), (self.pair.b, self.pair.a, "B")):
            for what, mine, theirs in (
                ("modules", {key[1] for key in side.calls if key[1]}, {key[1] for key in other.calls}),
                ("weights", {key[1] for key in side.weights}, {key[1] for key in other.weights}),
            ):
                if only := sorted(mine - theirs):
                    more = f" and {len(only) - 4} more" if len(only) > 4 else ""
                    self.report.note(f"{what} only in {name}: {', '.join(only[:4])}{more}")

    def _settings(self, key: Key) -> list[str]:
        """Return how the modules of both runs differ in class, settings and arguments."""
        ours, theirs = (side[0].modules.get(key[:2], {}) for side in (self.group.ours, self.group.theirs))
        found = [
            f"{what}: {ours[what]} and {theirs[what]}"
            for what in ("class", "settings")
            if what in ours and what in theirs and ours[what] != theirs[what]
        ]
        return [*found, *(f"argument {each}" for each in self.pair.scalars(key))]

    def _random_states(self) -> list[str]:
        """Return the random number generators whose states differ before the step."""
        ours, theirs = (side.facts.get("random_state", {}) for side in (self.pair.a, self.pair.b))
        found = [name for name in ours if theirs.get(name, ours[name]) != ours[name]]
        return [f"RNG states that differ before the step: {', '.join(found)}"] if found else []


def owner(name: WeightKey) -> Key:
    """Return the first call of the module that owns a weight."""
    return name[0], name[1].rpartition(".")[0], 0, False


def shown(path: str) -> str:
    """Return the path of an input for display."""
    return path.removeprefix("args.").removeprefix("kwargs.")
