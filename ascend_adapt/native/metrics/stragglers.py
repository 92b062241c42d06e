"""How far ranks are apart in what each does by itself: a slow one makes all others wait, and all their steps long.

In a step that ranks do together their times are alike, whoever was slow. So two parts are timed in which no rank waits
for another: getting the samples, and the first MLP of the forward pass up to its second matrix, which is the same work
on every rank. Neither makes the host wait for the device: moments are read where a log interval ends.
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
"""Steps of an interval that are looked at, the last."""
SLOW = 1.5
LEAST_S = {"samples": 2e-3, "mlp": 2e-4}
LEAST_STEPS = 8
"""A rank is slow which takes this many times the median, and this many seconds more, in so many steps or more."""
SHARE = 0.1
"""Of a step, at least, that a rank which is slow in getting its samples makes the others wait."""
PARTS = {"samples": "getting its samples", "mlp": "the first MLP of a step"}


class StepTimes:
    """This rank's times; every rank must make it, and call ``spread`` after the same steps.

    Without ``decoders`` no MLP is timed: in compiled blocks it is nothing by itself.
    """

    def __init__(self, mesh: Mesh, decoders: Sequence[nn.Module]) -> None:
        self._mesh, self._group = mesh, HostGroup(mesh)
        self._samples: deque[float] = deque(maxlen=KEPT)
        self._began: deque[float] = deque(maxlen=KEPT)
        self._moments: deque[tuple[Any, Any]] = deque(maxlen=KEPT)
        self._steps, self._step_s = 0, 0.0
        self._first: Any = None
        self._is_due = False
        self._told: set[tuple[str, int]] = set()
        mlps = (one for decoder in decoders for one in decoder.modules() if isinstance(one, MLP))
        mlp = next(mlps, None) if mesh.parallel.world_size > 1 else None
        self._parts = list(PARTS) if mlp is not None else ["samples"]
        if mlp is not None:
            mlp.register_forward_pre_hook(self._begins)
            mlp.dense_4h_to_h.register_forward_pre_hook(self._ends)

    def step(self, seconds_of_samples: float) -> None:
        """Take note of the step that begins, whose samples took so long to get."""
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

    def spread(self) -> dict[str, StragglerReport]:
        """Return the spread over all ranks of what was timed since the last call, by the name of the part.

        The device must have done the steps.
        """
        if self._group.size == 1:
            return {}
        mlp = [devices.seconds_between(*pair) for pair in self._moments]
        mine = (statistics.fmean(self._samples or [0.0]), statistics.median(mlp or [0.0]))
        self._steps = len(self._samples)
        self._step_s = statistics.median([after - before for before, after in pairwise(self._began)] or [0.0])
        told = self._group.numbers(mine)
        self._samples.clear()
        self._began.clear()
        self._moments.clear()
        return {part: StragglerReport.of([times[number] for times in told]) for number, part in enumerate(self._parts)}

    def told(self, iteration: int, spreads: Mapping[str, StragglerReport]) -> list[str]:
        """Return a line for each part in which a rank is slow, and was not said to be."""
        slow = {(part, one.slowest): one for part, one in spreads.items() if self._is_slow(part, one)}
        new, self._told = {key: one for key, one in slow.items() if key not in self._told}, set(slow)
        return [
            f"warning: iteration {iteration}: rank {rank} is slow in {PARTS[part]}: {one.most * 1e3:.2f} ms, the "
            f"median of the ranks is {one.median * 1e3:.2f} ms, the least {one.least * 1e3:.2f} ms"
            for (part, rank), one in new.items()
        ]

    def _is_slow(self, part: str, one: StragglerReport) -> bool:
        # Of two ranks the median is the mean of both.
        usual = one.median if self._group.size > 2 else one.least
        matters = max(LEAST_S[part], SHARE * self._step_s if part == "samples" else 0.0)
        return self._steps >= LEAST_STEPS and one.most > max(SLOW * usual, usual + matters)
