"""Three runs of a configuration under ``--deterministic``: uninterrupted, resumed halfway, and without CUDA graphs.

Losses and gradient norms must be equal in every bit. The passes are captured in the fourth step of a run, the update in
the fifth, so the first steps of the resumed run are eager where the uninterrupted one replays.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.comparison import Compared

Rows = Sequence[tuple[float, float]]
"""Losses and gradient norms."""


class Log:
    """Keeps losses, gradient norms and messages of a run, and passes its steps on to a clock."""

    def __init__(self, clock: Any = None) -> None:
        self.rows: list[tuple[float, float]] = []
        self.messages: list[str] = []
        self.clock = clock

    def say(self, text: str) -> None:
        """Keep a log line."""
        self.messages.append(text)

    def step(self, metrics: Any) -> None:
        """Keep the values of a step."""
        self.rows.append((metrics.lm_loss, metrics.grad_norm))
        if self.clock is not None:
            self.clock.step(metrics)

    def evaluation(self, iteration: int, part: str, loss: float) -> None:
        """Do nothing."""


def three_runs(config: Any, folder: Path, clock: Any = None) -> list[Compared]:
    """Train all three in this process and compare them; every rank must call it, with a folder that all see.

    The environment must request determinism before torch is used.
    """
    import torch.distributed as dist

    from ascend_adapt.native import loop
    from ascend_adapt.native.step.step_graph import VARIABLE

    steps = config.iterations
    saves = dataclasses.replace(config.checkpoint, save=str(folder / "saved"), interval=steps // 2)

    def run(checkpoint: Any, log: Log) -> Log:
        loop.train(dataclasses.replace(config, checkpoint=checkpoint), folder / "run", log)
        return log

    straight = run(saves, Log(clock))
    if os.environ.get("RANK", "0") == "0":
        (folder / "saved" / "latest_checkpointed_iteration.txt").write_text(str(steps // 2))
    if dist.is_initialized():
        dist.barrier()
    resumed = run(dataclasses.replace(config.checkpoint, load=str(folder / "saved")), Log())
    os.environ[VARIABLE] = "0"
    try:
        eager = run(config.checkpoint, Log())
    finally:
        del os.environ[VARIABLE]
    graphs = any("CUDA graphs from now on" in line for line in straight.messages)
    kind = "CUDA graphs" if graphs else "no CUDA graphs"
    half = steps // 2
    return [
        equal(f"resumed at {half} of {steps}, {kind}: steps not equal bit for bit", straight.rows[half:], resumed.rows),
        equal(f"eager, compared with {kind}: steps not equal bit for bit", straight.rows, eager.rows),
    ]


def equal(what: str, expected: Rows, found: Rows) -> Compared:
    """Return the number of steps that differ, and the total, with the first difference and the largest one."""
    differ = [number for number, pair in enumerate(zip(expected, found, strict=True), 1) if pair[0] != pair[1]]
    more = ""
    if differ:
        most = max(abs(one[0] - other[0]) / abs(other[0]) for one, other in zip(expected, found, strict=True))
        more = f"; first {differ[0]}: {expected[differ[0] - 1]} and {found[differ[0] - 1]}; losses at most {most:.1e}"
    return Compared(what, len(differ), "0", f"{len(differ)} of {len(found)}{more}")
