"""Resume test: whether a resumed run with CUDA graphs equals an uninterrupted run bit for bit.

``python -m bench.gpu.resume [--tiny]`` trains GPT-2 345M in bf16 with dropout under ``--deterministic``: once without
interruption, with a save halfway, and once from that checkpoint. Losses and gradient norms of the second half must be
equal in every bit. A third run with ``ASCEND_ADAPT_STEP_GRAPH=0`` shows whether graphs change these values. If the
uninterrupted run has not logged that its steps are graphs, the row reports this.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from pathlib import Path
from typing import Any

from bench.gpu.comparison import Compared, report
from bench.gpu.shapes import SHAPES, write_words

STEPS = 24
"""The save is in the middle. The passes are captured in the fourth step of a run, the update in the fifth."""


class Log:
    """Keeps losses, gradient norms and messages."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float]] = []
        self.messages: list[str] = []

    def say(self, text: str) -> None:
        """Keep a log line."""
        self.messages.append(text)

    def step(self, metrics: Any) -> None:
        """Keep the values of a step."""
        self.rows.append((metrics.lm_loss, metrics.grad_norm))

    def evaluation(self, iteration: int, part: str, loss: float) -> None:
        """Do nothing."""


def main() -> None:
    """Run all three and compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    tiny = parser.parse_args().tiny
    os.environ["ASCEND_ADAPT_DETERMINISTIC"] = "1"
    from ascend_adapt.native import loop
    from ascend_adapt.native.step.step_graph import VARIABLE

    shape, micro_batch = SHAPES["tiny" if tiny else "345M"], 2 if tiny else 16
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_words(folder / "words", (STEPS + 1) * micro_batch * shape.length + 1, shape.vocabulary)
        config = shape.config(micro_batch, 1, STEPS, 0.1, folder / "words", "")
        saves = dataclasses.replace(config.checkpoint, save=str(folder / "saved"), interval=STEPS // 2)

        def run(checkpoint: Any) -> Log:
            log = Log()
            loop.train(dataclasses.replace(config, checkpoint=checkpoint), folder / "run", log)
            return log

        straight = run(saves)
        tracker = folder / "saved" / "latest_checkpointed_iteration.txt"
        tracker.write_text(str(STEPS // 2))
        resumed = run(dataclasses.replace(config.checkpoint, load=str(folder / "saved")))
        os.environ[VARIABLE] = "0"
        eager = run(config.checkpoint)
    graphs = any("CUDA graphs from now on" in line for line in straight.messages + resumed.messages)
    kind = "CUDA graphs" if graphs else "no CUDA graphs"
    half = straight.rows[STEPS // 2 :]
    report(
        f"the same run; {kind}",
        [
            _equal(f"resumed at {STEPS // 2} of {STEPS}, {kind}: steps not equal bit for bit", half, resumed.rows),
            _equal(f"eager, compared with {kind}: steps not equal bit for bit", straight.rows, eager.rows),
        ],
    )


def _equal(what: str, expected: list[tuple[float, float]], found: list[tuple[float, float]]) -> Compared:
    """Return the number of steps that differ, and the total."""
    differ = [number for number, pair in enumerate(zip(expected, found, strict=True), 1) if pair[0] != pair[1]]
    first = f"; first {differ[0]}: {expected[differ[0] - 1]} and {found[differ[0] - 1]}" if differ else ""
    return Compared(what, len(differ), "0", f"{len(differ)} of {len(found)}{first}")


if __name__ == "__main__":
    main()
