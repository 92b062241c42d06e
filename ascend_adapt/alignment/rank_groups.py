"""Pairs of ranks to compare: one rank with one rank, or with the shards of a tensor-parallel group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ascend_adapt.alignment.recording import Recording
from ascend_adapt.alignment.step_view import Pair, StepView, WeightKey
from ascend_adapt.errors import AlignmentError


@dataclass
class RankGroup:
    """The same rank or tensor-parallel group in both runs, and its differences after earlier steps."""

    rank: int
    ours: list[Recording]
    theirs: list[Recording]
    after: dict[WeightKey, float] | None = None
    """The difference of each weight after the previous step, or None if that step was not compared."""
    states: dict[tuple[Any, ...], float] = field(default_factory=dict)
    """The difference of each optimizer state, and of each weight, after its last update."""

    def steps(self) -> list[int]:
        """Return the steps that all ranks recorded.

        Raises:
            AlignmentError: the ranks recorded no step in common.
        """
        steps = sorted(set.intersection(*(set(each.steps) for each in (*self.ours, *self.theirs))))
        if not steps:
            raise AlignmentError(
                f"rank {self.rank}: steps {sorted(self.ours[0].steps)} and {sorted(self.theirs[0].steps)} were "
                "recorded, expected steps in common — record the same steps in both, with --record-steps"
            )
        return steps

    def pair(self, step: int, compute: float) -> Pair:
        """Return a step of both runs.

        Raises:
            AlignmentError: the runs have no module in common.
        """
        pair = Pair(
            StepView([one.steps[step] for one in self.ours]),
            StepView([one.steps[step] for one in self.theirs]),
            compute,
            len(self.ours) == len(self.theirs),
            self.ours[0].facts.get("form") == self.theirs[0].facts.get("form"),
        )
        if not any(pair.has(key) for key in pair.a.calls):
            raise AlignmentError(
                f"rank {self.rank}: the recordings have no module in common, expected the same model in both — "
                "record the same model"
            )
        return pair


def matched(a: dict[int, Recording], b: dict[int, Recording]) -> Iterator[RankGroup]:
    """Yield each pair of ranks or tensor-parallel groups.

    Raises:
        AlignmentError: the ranks cannot be matched.
    """
    sizes = [next(iter(each.values())).tensor_ranks[1] for each in (a, b)]
    small, large = sorted(sizes)
    if large % small or (small != large and small != 1):
        raise AlignmentError(
            f"tensor-parallel sizes {sizes[0]} and {sizes[1]}, expected equal sizes, or 1 in one run — record again"
        )

    def groups(run: dict[int, Recording], size: int) -> dict[int, list[Recording]]:
        wide = large // size if size == small and small != large else 1
        if size == small:
            return {rank * wide: [one] for rank, one in run.items()}
        found: dict[int, list[Recording]] = defaultdict(list)
        for rank, one in sorted(run.items()):
            found[rank - one.tensor_ranks[0]].append(one)
        return {rank: ranks for rank, ranks in found.items() if len(ranks) == size}

    ours, theirs = groups(a, sizes[0]), groups(b, sizes[1])
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        raise AlignmentError(
            f"ranks {sorted(a)} and {sorted(b)} were recorded, expected ranks in common — record the same "
            "ranks, with --record-ranks"
        )
    for rank in common:
        yield RankGroup(rank, ours[rank], theirs[rank])
