"""Look at what steps give, and say where a run went wrong: gradients that are no numbers, losses that leap."""

from __future__ import annotations

import math
import statistics
from collections import deque

from ascend_adapt.native.parallel.host_group import HostGroup
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.step.trainer import Step

SEEN = 32
"""Losses that the next is held against."""
DEVIATIONS = 6.0
LEAST = 0.1
"""A spike is at least this much of their mean above it."""


class AnomalyDetector:
    """The steps of a run; every rank must make it, and give it every step."""

    def __init__(self, mesh: Mesh, *, scale_adapts: bool = True) -> None:
        """``scale_adapts``: a dynamic loss scale answers gradients that overflow; a fixed one cannot."""
        self._mesh, self._group = mesh, HostGroup(mesh)
        self._losses: deque[float] = deque(maxlen=SEEN)
        self.is_spoiled = False
        """Whether the last step's loss or gradients were no numbers, and not by the loss scale."""
        self._scale_adapts = scale_adapts
        self._was_told = False
        self.cause: str | None = None
        """The first rank with NaN or Inf in its weights, else in its gradients, of the first spoiled step in a row."""

    def told(self, iteration: int, step: Step) -> list[str]:
        """Return what is to be said of a step, on rank 0; of steps in a row without numbers only the first is told.

        A step that fp16's loss scale skipped is nothing to be told of, unless its loss is no number either: it is not
        the scale that spoils that, and no other scale will mend it.
        """
        is_bad = not (math.isfinite(step.grad_norm) and math.isfinite(step.loss))
        self.is_spoiled = is_bad and not (step.skipped and self._scale_adapts and math.isfinite(step.loss))
        if is_bad and not self.is_spoiled:
            return []
        was, self._was_told = self._was_told, is_bad
        if is_bad:
            return [] if was else self._spoiled(iteration, step)
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
        """Say which ranks' weights are no numbers; where all are, which gradients, and how near to the loss.

        Backward passes go from there on. A weight spoils the loss, and by it all gradients of all ranks.
        """
        mesh = self._mesh
        place = f"stage {mesh.pipeline_rank}, data {mesh.data_rank}, tensor {mesh.tensor_rank}"
        weights, names = step.spoiled_weights, step.spoiled
        mine = (
            f"({place}): weights of {len(weights)} parameters, the first {weights[0]}" if weights else None,
            f"({place}): gradients of {len(names)} parameters, nearest to the loss {names[-1]}" if names else None,
        )
        told = self._group.together(lambda: mine)
        causes = [weight for weight, _ in told] if any(weight for weight, _ in told) else [other for _, other in told]
        lines = [f"rank {rank} {cause}" for rank, cause in enumerate(causes) if cause]
        self.cause = lines[0] if lines else None
        return [
            f"warning: iteration {iteration}: loss {step.loss:g}, gradient norm {step.grad_norm:g}",
            *(f"  {line}" for line in lines),
        ]
