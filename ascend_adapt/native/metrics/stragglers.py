"""Straggler detection: find a slow rank, for which all other ranks wait at every step.

The step time is the same on all ranks, whichever rank is slow. Therefore two parts are timed in which no rank waits for
another: loading the samples, and the first MLP of the forward pass up to its second matrix, which is the same work on
every rank. Neither measurement synchronizes the host with the device: events are read at the end of a log interval.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from ascend_adapt.native import device as devices
from ascend_adapt.native.metrics.step_metrics import StragglerReport
from ascend_adapt.native.model.layers import MLP
from ascend_adapt.native.parallel.host_group import HostGroup
from ascend_adapt.native.parallel.mesh import Mesh

KEPT = 32
"""Number of steps that are timed at the end of a log interval."""
SLOW = 1.5
LEAST_S = {"samples": 2e-3, "mlp": 2e-4}
LEAST_STEPS = 8
"""A rank is slow if its time is SLOW times the median and LEAST_S seconds above it, in LEAST_STEPS steps or more."""
INTERVALS = 3
"""Number of consecutive log intervals in which a rank must be slow to be reported: other load may be brief."""
SHARE = 0.1
"""Minimum share of a step during which the others wait for a rank that is slow to load its samples."""
PARTS = {"samples": "loading its samples", "mlp": "the first MLP of a step"}


class StepTimes:
    """Step times of this rank. Every rank must create this object and call ``report`` after the same steps.

    Without ``decoders`` no MLP is timed: a compiled block does not call its MLP as a module.
    """

    def __init__(self, mesh: Mesh, decoders: Sequence[nn.Module]) -> None:
        self._mesh, self._group = mesh, HostGroup(mesh)
        self._samples: deque[float] = deque(maxlen=KEPT)
        self._began: deque[float] = deque(maxlen=KEPT)
        self._moments: deque[tuple[Any, Any]] = deque(maxlen=KEPT)
        self._steps, self._step_s = 0, 0.0
        self._first: Any = None
        self._is_due = False
        self._slow_intervals: dict[tuple[str, int], int] = {}
        mlps = (one for decoder in decoders for one in decoder.modules() if isinstance(one, MLP))
        mlp = next(mlps, None) if mesh.parallel.world_size > 1 else None
        self._parts = list(PARTS) if mlp is not None else ["samples"]
        if mlp is not None:
            mlp.register_forward_pre_hook(self._begins)
            mlp.dense_4h_to_h.register_forward_pre_hook(self._ends)

    def step(self, seconds_of_samples: float) -> None:
        """Record the start of a step, and the seconds that loading its samples took."""
        self._samples.append(seconds_of_samples)
        self._began.append(time.perf_counter())
        self._is_due = True

    def _begins(self, *_: Any) -> None:
        if self._is_due:
            self._first = devices.moment(self._mesh.device)

    def _ends(self, *_: Any) -> None:
        if self._is_due and self._first is not None:
            self._moments.append((self._first, devices.moment(self._mesh.device)))
            self._is_due, self._first = False, None

    def report(self) -> dict[str, StragglerReport]:
        """Return the straggler report of each part over all ranks since the last call, by the name of the part.

        The device must have finished the steps.
        """
        if self._group.size == 1:
            return {}
        mlp = [devices.seconds_between(*pair) for pair in self._moments]
        mine = (statistics.fmean(self._samples or [0.0]), statistics.median(mlp or [0.0]))
        self._steps = len(self._samples)
        self._step_s = statistics.median([after - before for before, after in pairwise(self._began)] or [0.0])
        gathered = self._group.numbers(mine)
        self._samples.clear()
        self._began.clear()
        self._moments.clear()
        reports = {
            part: StragglerReport.of([times[number] for times in gathered]) for number, part in enumerate(self._parts)
        }
        slow = [(part, one.slowest) for part, one in reports.items() if self._is_slow(part, one)]
        self._slow_intervals = {key: self._slow_intervals.get(key, 0) + 1 for key in slow}
        return reports

    def warnings(self, iteration: int, reports: Mapping[str, StragglerReport]) -> list[str]:
        """Return a warning for each part in which one rank has been slow in exactly INTERVALS reports in a row."""
        return [
            f"warning: iteration {iteration}: rank {rank} is slow in {PARTS[part]}: {one.most * 1e3:.2f} ms, the "
            f"median over ranks is {one.median * 1e3:.2f} ms, the minimum {one.least * 1e3:.2f} ms"
            for part, one in reports.items()
            if self._slow_intervals.get((part, rank := one.slowest)) == INTERVALS
        ]

    def _is_slow(self, part: str, one: StragglerReport) -> bool:
        # The median of two ranks is their mean.
        usual = one.median if self._group.size > 2 else one.least
        matters = max(LEAST_S[part], SHARE * self._step_s if part == "samples" else 0.0)
        return self._steps >= LEAST_STEPS and one.most > max(SLOW * usual, usual + matters)
