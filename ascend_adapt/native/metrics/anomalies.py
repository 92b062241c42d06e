"""Anomalies of training steps: NaN or Inf in loss, gradients or weights, and loss spikes."""

from __future__ import annotations

import math
import statistics
from collections import deque

from ascend_adapt.native.parallel.host_group import HostGroup
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.step.trainer import Step

SEEN = 32
"""Number of previous losses that a loss is compared with."""
DEVIATIONS = 6.0
LEAST = 0.1
"""A loss spike exceeds the mean of the previous losses by at least this fraction."""


class AnomalyDetector:
    """Anomaly detector of a run; every rank must create one and pass every step to it."""

    def __init__(self, mesh: Mesh, *, scale_adapts: bool = True) -> None:
        """``scale_adapts``: a dynamic loss scale responds to overflowing gradients; a fixed one cannot."""
        self._mesh, self._group = mesh, HostGroup(mesh)
        self._losses: deque[float] = deque(maxlen=SEEN)
        self.is_spoiled = False
        """Whether the last step had NaN or Inf values that a lower loss scale cannot prevent."""
        self._scale_adapts = scale_adapts
        self._was_reported = False
        self.cause: str | None = None
        """The first rank with NaN or Inf in its weights, else in its gradients, at the first bad step of a series."""

    def report(self, iteration: int, step: Step) -> list[str]:
        """Return warnings about a step; of consecutive steps with NaN or Inf, only the first is reported.

        A step skipped by fp16's dynamic loss scaling is normal, unless its loss is NaN or Inf too, which no scale
        prevents.
        """
        is_bad = not (math.isfinite(step.grad_norm) and math.isfinite(step.loss))
        self.is_spoiled = is_bad and not (step.skipped and self._scale_adapts and math.isfinite(step.loss))
        if is_bad and not self.is_spoiled:
            return []
        was_reported, self._was_reported = self._was_reported, is_bad
        if is_bad:
            return [] if was_reported else self._spoiled(iteration, step)
        before, spike = list(self._losses), None
        self._losses.append(step.loss)
        if len(before) == SEEN:
            mean = statistics.fmean(before)
            # statistics.pstdev computes with exact fractions, and the device would wait for it.
            deviation = math.sqrt(statistics.fmean((loss - mean) ** 2 for loss in before))
            if step.loss - mean > max(DEVIATIONS * deviation, LEAST * abs(mean)):
                spike = (
                    f"warning: iteration {iteration}: loss {step.loss:.4g}, the previous {SEEN} losses were {mean:.4g} "
                    f"on average, {max(before):.4g} at most"
                )
        return [spike] if spike else []

    def _spoiled(self, iteration: int, step: Step) -> list[str]:
        """Return which ranks have NaN or Inf in weights, or, if all weights are finite, in gradients.

        One such weight corrupts the loss and thus the gradients of all ranks. For gradients, the parameter nearest to
        the loss is reported, because the backward pass starts there.
        """
        mesh = self._mesh
        place = f"stage {mesh.pipeline_rank}, data {mesh.data_rank}, tensor {mesh.tensor_rank}"
        weights, names = step.spoiled_weights, step.spoiled
        mine = (
            f"({place}): weights of {len(weights)} parameters, the first {weights[0]}" if weights else None,
            f"({place}): gradients of {len(names)} parameters, nearest to the loss {names[-1]}" if names else None,
        )
        by_rank = self._group.together(lambda: mine)
        causes = (
            [weight for weight, _ in by_rank]
            if any(weight for weight, _ in by_rank)
            else [other for _, other in by_rank]
        )
        lines = [f"rank {rank} {cause}" for rank, cause in enumerate(causes) if cause]
        self.cause = lines[0] if lines else None
        return [
            f"warning: iteration {iteration}: loss {step.loss:g}, gradient norm {step.grad_norm:g}",
            *(f"  {line}" for line in lines),
        ]
