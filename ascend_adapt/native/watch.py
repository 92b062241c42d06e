"""Look at what steps give, and say where a run went wrong: gradients that are no numbers, losses that leap."""

from __future__ import annotations

import math
import statistics
from collections import deque

from ascend_adapt.native.host_group import HostGroup
from ascend_adapt.native.mesh import Mesh
from ascend_adapt.native.trainer import Step

SEEN = 32
"""Losses that the next is held against."""
DEVIATIONS = 6.0
LEAST = 0.1
"""A spike is at least this much of their mean above it."""


class Watch:
    """The steps of a run; every rank must make it, and give it every step."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh, self._group = mesh, HostGroup(mesh)
        self._losses: deque[float] = deque(maxlen=SEEN)
        self._was_spoiled = False

    def told(self, iteration: int, step: Step) -> list[str]:
        """Return what is to be said of a step, on rank 0; of steps in a row without numbers only the first is told.

        A step that fp16's loss scale skipped is nothing to be told of, unless its loss is no number either: it is not
        the scale that spoils that, and no other scale will mend it.
        """
        if step.skipped and math.isfinite(step.loss):
            return []
        if not math.isfinite(step.grad_norm) or not math.isfinite(step.loss):
            was, self._was_spoiled = self._was_spoiled, True
            return [] if was else self._spoiled(iteration, step)
        self._was_spoiled = False
        before, spike = list(self._losses), None
        self._losses.append(step.loss)
        if len(before) == SEEN:
            mean, deviation = statistics.fmean(before), statistics.pstdev(before)
            if step.loss - mean > max(DEVIATIONS * deviation, LEAST * abs(mean)):
                spike = (
                    f"warning: iteration {iteration}: loss {step.loss:.4g}, those of the {SEEN} steps before were "
                    f"{mean:.4g} on average, {max(before):.4g} at most"
                )
        return [spike] if spike else []

    def _spoiled(self, iteration: int, step: Step) -> list[str]:
        """Say on which ranks gradients are no numbers, and how near to the loss: backward passes go from there on."""
        mesh = self._mesh
        mine = (mesh.pipeline_rank, mesh.data_rank, mesh.tensor_rank, step.spoiled)
        lines = [f"warning: iteration {iteration}: loss {step.loss:g}, gradient norm {step.grad_norm:g}"]
        for rank, (stage, data, tensor, names) in enumerate(self._group.together(lambda: mine)):
            if names:
                place = f"rank {rank} (stage {stage}, data {data}, tensor {tensor})"
                lines.append(f"  {place}: gradients of {len(names)} parameters, nearest to the loss {names[-1]}")
        return lines
