"""Host group: gloo over all ranks, independent of the collectives of training, and usable from any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ascend_adapt.errors import CheckpointError, TrainingError, type_and_message
from ascend_adapt.native.parallel import collectives
from ascend_adapt.native.parallel.mesh import Mesh

T = TypeVar("T")


class HostGroup:
    """Process group of all ranks for host memory; every rank must create it and call its methods in the same order."""

    def __init__(self, mesh: Mesh) -> None:
        self.rank, self.size = mesh.rank, mesh.parallel.world_size
        self.process_group: Any = dist.new_group(backend="gloo") if self.size > 1 else None

    def together(self, work: Callable[[], T]) -> list[T]:
        """Call ``work`` on every rank and return the results of all, in rank order.

        Raises:
            TrainingError: ``work`` failed on a rank; raised on every rank, with the error of the first rank that
            failed.
        """
        mine: tuple[T | None, str | None]
        try:
            mine = work(), None
        except (OSError, ValueError, RuntimeError, TrainingError, CheckpointError) as error:
            mine = None, f"rank {self.rank}: {type_and_message(error)}"
        outcomes: list[Any] = [mine]
        if self.size > 1:
            outcomes = [None] * self.size
            dist.all_gather_object(outcomes, mine, group=self.process_group)
        failure = next((error for _, error in outcomes if error is not None), None)
        if failure is not None:
            raise TrainingError(failure)
        return [given for given, _ in outcomes]

    def numbers(self, mine: Sequence[float]) -> list[list[float]]:
        """Return the numbers of every rank, the same count from each; six times as fast as ``together``."""
        if self.size == 1:
            return [list(mine)]
        own = torch.tensor(mine, dtype=torch.float64)
        every = own.new_empty(self.size, len(own))
        collectives.all_gather(every.view(-1), own, self.process_group)
        gathered: list[list[float]] = every.tolist()
        return gathered

    def on_first(self, work: Callable[[], T]) -> T:
        """Call ``work`` on rank 0 and return its result on every rank; errors as in ``together``."""
        given: list[Any] = self.together(work if self.rank == 0 else lambda: None)
        first: T = given[0]
        return first
