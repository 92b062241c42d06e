"""Metrics of one training step."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StragglerReport:
    """Straggler report of one part of a step: the ranks' minimum, median and maximum seconds, and the slowest rank."""

    least: float
    median: float
    most: float
    slowest: int

    @staticmethod
    def of(seconds: Sequence[float]) -> StragglerReport:
        """Return the report of each rank's seconds, in rank order."""
        most = max(seconds)
        return StragglerReport(min(seconds), statistics.median(seconds), most, seconds.index(most))


@dataclass(frozen=True)
class StepMetrics:
    """Metrics of one iteration, the same on every rank; ``iteration`` and ``consumed_samples`` include it.

    ``learning_rate`` is the next step's, as in the log of every upstream. A step is skipped if its gradients are not
    finite; ``nan`` is whether the loss is NaN or Inf, as Megatron counts it.
    """

    iteration: int
    consumed_samples: int
    samples: int
    tokens: int
    lm_loss: float
    learning_rate: float
    grad_norm: float
    loss_scale: float
    skipped: bool
    nan: bool
    seconds: float
    params_norm: float | None = None
    num_zeros: float | None = None
    peak_memory_bytes: int | None = None
    """Peak memory of this rank's device since the start of the run; None on a CPU."""
    spreads: Mapping[str, StragglerReport] = field(default_factory=dict)
    """Straggler reports of the log interval that ends with this step; empty at other steps and for a single rank."""
