"""Tells the launcher of each step, for the bar on its terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from ascend_adapt.native.metrics.step_metrics import StepMetrics

VARIABLE = "ASCEND_ADAPT_PROGRESS_FD"
"""The number of the pipe's descriptor; unset where the launcher has no bar."""


class ProgressPipe:
    """One end of the pipe. A launcher that does not read, or is gone, is no reason to wait or to stop."""

    def __init__(self, iterations: int, descriptor: int | None) -> None:
        self._iterations, self._descriptor = iterations, descriptor

    @classmethod
    def of(cls, environ: Mapping[str, str], iterations: int) -> ProgressPipe:
        """Return the pipe that ``ascend-run`` opened for this rank, or one that leads nowhere."""
        told = environ.get(VARIABLE)
        return cls(iterations, None if told is None else int(told))

    def step(self, metrics: StepMetrics) -> None:
        """Tell of a step."""
        if self._descriptor is None:
            return
        told = {
            "iteration": metrics.iteration,
            "iterations": self._iterations,
            "lm_loss": metrics.lm_loss,
            "samples_per_s": metrics.samples / max(metrics.seconds, 1e-9),
        }
        try:
            os.write(self._descriptor, (json.dumps(told) + "\n").encode())
        except BlockingIOError:
            return  # the next step is told instead
        except OSError:
            self._descriptor = None
