"""Trial of ``--compile``: time the first steps with and without compiled blocks, and keep the faster mode."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from ascend_adapt.alignment import updates as recorded
from ascend_adapt.kernels import dispatch
from ascend_adapt.native.parallel.mesh import Mesh

WARM_UP = 6
"""Warm-up steps of each mode: kernels choose their backends, the compiler runs, graphs are captured."""
TIMED = 10


def why_not() -> str:
    """Return the reason why a run stays compiled without a trial, or ""."""
    if dispatch.is_deterministic():
        return "a deterministic run must not depend on a clock"
    return "" if recorded.current() is None else "a recorded run must not depend on a clock"


class CompileTrial:
    """The trial of one run, which starts compiled. All ranks decide alike."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self.compiled = True
        self._decided = False
        self._messages: list[str] = []
        self._seconds: dict[bool, list[float]] = {True: [], False: []}

    def step(self, seconds: float, micro_batches: int) -> bool:
        """Count a step; return whether to switch for the next one."""
        if self._decided:
            return False
        before, taken = self.compiled, self._seconds[self.compiled]
        taken.append(seconds / micro_batches)
        if len(taken) < WARM_UP + TIMED:
            return False
        self.compiled = not before and self._pays()
        return self.compiled != before

    def messages(self) -> list[str]:
        """Return the messages to log, and clear them."""
        messages, self._messages = self._messages, []
        return messages

    def _pays(self) -> bool:
        """Return whether compiled steps are faster by more than the noise."""
        (on, on_noise), (off, off_noise) = self._agreed(
            *(_median(self._seconds[way][WARM_UP:]) for way in (True, False))
        )
        noise = max(on_noise, off_noise)
        pays, self._decided = on + noise < off, True
        ratio = f"{on / off:.2f}x slower" if on >= off else f"{off / on:.2f}x faster"
        doubt = ", less than the noise" if on < off and not pays else ""
        self._messages.append(
            f"compile: {'on' if pays else 'off'}, {ratio} than without at this shape{doubt}: {on * 1e3:.1f} and "
            f"{off * 1e3:.1f} ms per micro batch, medians of {TIMED} steps, noise {noise * 1e3:.1f} ms"
        )
        return pays

    def _agreed(self, *mine: tuple[float, float]) -> list[list[float]]:
        """Return the means over all ranks."""
        numbers = torch.tensor(mine, dtype=torch.float32).flatten().to(self._mesh.device)
        means = self._mesh.sum_over_all(numbers) / self._mesh.parallel.world_size
        agreed: list[list[float]] = means.view(-1, 2).tolist()
        return agreed


def _median(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the median absolute deviation from it."""
    middle = statistics.median(seconds)
    return middle, statistics.median(abs(one - middle) for one in seconds)
