"""Clock: time the steps of a training loop, and profile the GPU's kernels in the last steps."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

PROFILED = 2
SUSTAINED = 20
"""Number of the last further steps that are timed: a GPU slows down when it reaches its power limit."""
FIRST = 3
"""Number of first steps whose end time is recorded. With ``--compile``, the second step is the first compiled one."""


class Clock:
    """Clock of a training loop, which calls ``tick`` after each step. It also replaces the log of a native run."""

    def __init__(self, steps: int, warm_up: int, device: str, further: int = 0) -> None:
        """Count steps on a device type: "cuda", "cpu", or "npu" in a rehearsal.

        ``further`` steps follow the timed ones. The last SUSTAINED of them are timed separately.
        """
        self.steps, self.warm_up, self.further = steps, warm_up, further
        self.on_gpu, self.on_cpu = device == "cuda", device == "cpu"
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.sustained: list[float] = []
        """Seconds of the last SUSTAINED further steps."""
        self.facts: dict[str, Any] = {}
        self.profile: Any = None
        self.start()

    @property
    def total_steps(self) -> int:
        """Number of warm-up, timed, further and profiled steps."""
        return self._measured + PROFILED

    @property
    def _measured(self) -> int:
        return self.warm_up + self.steps + self.further

    def begin(self) -> None:
        """Mark the time at which the model is built and the first step begins."""

    def start(self) -> None:
        """Mark the start of training; by default, training starts when the clock is created."""
        self.before = self.began = time.perf_counter()

    def tick(self, loss: float) -> None:
        """End a step, and synchronize with the device."""
        import torch

        if self.on_gpu:
            torch.cuda.synchronize()
        now, done = time.perf_counter(), len(self.losses)
        self.losses.append(loss)
        if self.warm_up <= done < self.warm_up + self.steps:
            self.seconds.append(now - self.before)
        if self.further and self._measured - SUSTAINED <= done < self._measured:
            self.sustained.append(now - self.before)
        if self.on_gpu:
            self._look(torch, done + 1)
        if done < FIRST:
            self.facts.setdefault("first_steps_s", []).append(round(now - self.began, 2))
        if done + 1 == self.warm_up:
            self.facts["warm_up_s"] = now - self.began
        self.before = time.perf_counter()

    def _look(self, torch: Any, done: int) -> None:
        if done == self.warm_up:
            torch.cuda.reset_peak_memory_stats()
        elif done == self._measured:
            # Replaying a CUDA graph allocates nothing, but the memory of its activations stays reserved.
            self.facts["allocated_gib"] = torch.cuda.max_memory_allocated() / 2**30
            self.facts["peak_gib"] = torch.cuda.max_memory_reserved() / 2**30
            self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self.profile.start()
        elif done == self.total_steps:
            self.profile.stop()
            self.facts |= kernels_of(self.profile, int(os.environ.get("BENCH_KERNELS", "12")))

    def say(self, text: str) -> None:
        """Keep the decisions that a native run logs; the table has all other facts."""
        if text.startswith(("compile:", "training steps are", "no CUDA graphs")):
            self.facts.setdefault("decisions", []).append(text)

    def step(self, metrics: Any) -> None:
        """End a step of a native run."""
        self.tick(metrics.lm_loss)

    def evaluation(self, iteration: int, part: str, loss: float) -> None:
        """Do nothing."""


def kernels_of(profile: Any, kept: int) -> dict[str, Any]:
    """Return the GPU busy time of a step, the number of kernels, and the slowest kernels, in ms per step."""
    import torch

    took: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not getattr(event, "is_user_annotation", False):
            took[event.name[:100]] += event.time_range.end - event.time_range.start
            count[event.name[:100]] += 1
    each = {name: [round(spent / PROFILED / 1e3, 3), count[name] / PROFILED] for name, spent in took.most_common(kept)}
    total = sum(took.values()) / PROFILED / 1e3
    return {"busy_ms": total, "kernels": sum(count.values()) / PROFILED, "longest_kernels": each}
