"""What is told of one step."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StragglerReport:
    """Seconds of a part of the step: of the quickest rank, in the middle, and of the slowest, with its number."""

    least: float
    median: float
    most: float
    slowest: int

    @staticmethod
    def of(seconds: Sequence[float]) -> StragglerReport:
        """Return that of the ranks' seconds, in the order of the ranks."""
        most = max(seconds)
        return StragglerReport(min(seconds), statistics.median(seconds), most, seconds.index(most))


@dataclass(frozen=True)
class StepMetrics:
    """One iteration, the same on every rank. ``iteration`` and ``consumed_samples`` are those after it.

    ``learning_rate`` is that of the next step, as every upstream prints it. A skipped step is one whose gradients were
    not finite under a moving loss scale; ``nan`` says that the loss was not a number.
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
    spreads: Mapping[str, StragglerReport] = field(default_factory=dict)
    """Of the interval that ends with this step; empty of other steps, and of one rank."""
