"""Progress pipe: reports each step to the launcher, for the progress bar on its terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from ascend_adapt.native.metrics.step_metrics import StepMetrics

VARIABLE = "ASCEND_ADAPT_PROGRESS_FD"
"""The pipe's file descriptor; unset if the launcher shows no progress bar."""


class ProgressPipe:
    """Write end of the pipe. A launcher that does not read or has exited neither blocks nor ends the run."""

    def __init__(self, iterations: int, descriptor: int | None) -> None:
        self._iterations, self._descriptor = iterations, descriptor

    @classmethod
    def of(cls, environ: Mapping[str, str], iterations: int) -> ProgressPipe:
        """Return the pipe that ``ascend-run`` opened for this rank, or a pipe that writes nothing."""
        descriptor = environ.get(VARIABLE)
        return cls(iterations, None if descriptor is None else int(descriptor))

    def step(self, metrics: StepMetrics) -> None:
        """Report a step."""
        if self._descriptor is None:
            return
        progress = {
            "iteration": metrics.iteration,
            "iterations": self._iterations,
            "lm_loss": metrics.lm_loss,
            "samples_per_s": metrics.samples / max(metrics.seconds, 1e-9),
        }
        try:
            os.write(self._descriptor, (json.dumps(progress) + "\n").encode())
        except BlockingIOError:
            return  # the next step is reported instead
        except OSError:
            self._descriptor = None
