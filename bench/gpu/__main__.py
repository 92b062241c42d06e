"""``python -m bench.gpu``: the native trainer and its peers on one GPU, one table, as JSON and as a chart.

Every row is a job in its own process. Where the machine has several GPUs, each runs the whole table, one after the
other rows, so that the spread between cards is visible. ``--rows`` chooses rows, ``--tiny`` tries the smallest shapes
on the CPU. Peers state their settings in ``bench/gpu/peers``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One job of the table."""

    side: str
    shape: str = "345M"
    micro_batch: int = 16
    accumulation: int = 1
    dropout: float = 0.0
    arguments: str = ""
    steps: int = 20

    @property
    def words(self) -> list[str]:
        """The command line of ``bench.gpu.job``."""
        given = ["--micro-batch", self.micro_batch, "--accumulation", self.accumulation, "--dropout", self.dropout]
        return [
            self.side,
            "--shape",
            self.shape,
            *map(str, given),
            f"--arguments={self.arguments}",
            "--steps",
            str(self.steps),
        ]


RECOMPUTED = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
ROWS = {
    "345M-16": Row("native"),
    "345M-32": Row("native", micro_batch=32),
    "345M-16-minimal": Row("minimal-gpt-compiled"),
    "345M-32-minimal": Row("minimal-gpt-compiled", micro_batch=32),
    "345M-16-compile": Row("native-compile"),
    "345M-16-dropout": Row("native", dropout=0.1),
    "345M-16-hf": Row("hugging-face-compiled"),
    "20B": Row("native", "20B-6", 4, steps=10),
    "20B-accumulated": Row("native", "20B-6", 4, 8, steps=3),
    "20B-recomputed": Row("native", "20B-6", 4, arguments=RECOMPUTED, steps=8),
    "20B-hf": Row("hugging-face-bf16", "20B-6", 4, steps=8),
    "20B-hf-compiled": Row("hugging-face-bf16-compiled", "20B-6", 4, steps=8),
}
TINY = {"tiny": Row("native", "tiny", 2, steps=3), "tiny-neox": Row("native", "tiny-neox", 2, 2, steps=3)}


def measured(row: Row, card: int | None) -> dict[str, Any]:
    """Run a job on a card, or the CPU; its result, or the end of what it printed."""
    environ = {"ASCEND_ADAPT_DEVICE": "cpu"} if card is None else {"CUDA_VISIBLE_DEVICES": str(card)}
    words = [sys.executable, "-m", "bench.gpu.job", *row.words]
    ended = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environ})
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not lines:
        return {"failed": ended.stderr[-1500:] or f"exit code {ended.returncode}"}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def table(results: dict[str, list[dict[str, Any]]]) -> Table:
    """Return the results, a row a job, with every card's model TFLOP/s."""
    made = Table(title="model TFLOP/s on each card; times and memory of the first")
    for column in ("job", "TFLOP/s", "step, ms", "GPU busy, ms", "reserved, GiB", "first steps, s", "last loss"):
        made.add_column(column, justify="left" if column == "job" else "right")
    for name, runs in results.items():
        first = next((one for one in runs if "failed" not in one), None)
        speeds = ", ".join("failed" if "failed" in one else f"{one['tflops']:.1f}" for one in runs)
        if first is None:
            made.add_row(name, speeds)
            continue
        numbers = [first.get(key) for key in ("step_ms", "busy_ms", "peak_gib", "warm_up_s")]
        cells = ["" if number is None else f"{number:.1f}" for number in numbers]
        made.add_row(name, speeds, *cells, f"{first['losses'][-1]:.3f}")
    return made


def chart(results: dict[str, list[dict[str, Any]]], path: Path) -> str:
    """Draw the speeds; return what to say where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no chart: matplotlib is not installed"
    ran = {name: [one["tflops"] for one in runs if "failed" not in one] for name, runs in results.items()}
    ran = {name: speeds for name, speeds in ran.items() if speeds}
    figure = Figure(figsize=(8, 0.45 * len(ran) + 1.2), layout="constrained")
    axes = figure.subplots()
    for place, (name, speeds) in enumerate(reversed(ran.items())):
        is_ours = ROWS.get(name, Row("native")).side.startswith("native")
        axes.barh(place, sum(speeds) / len(speeds), color="#c7000b" if is_ours else "#9aa0a6")
        axes.plot(speeds, [place] * len(speeds), "k|", markersize=10)
    axes.set_yticks(range(len(ran)), list(reversed(ran)))
    axes.set_xlabel("model TFLOP/s; a mark is one card")
    figure.savefig(path, dpi=140)
    return f"chart: {path}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=ROWS, help="only these rows")
    parser.add_argument("--tiny", action="store_true", help="the smallest shapes on the CPU")
    parser.add_argument(
        "--into", type=Path, default=Path("runs/bench-gpu"), help="folder for results.json and chart.png"
    )
    options = parser.parse_args()
    import torch

    cards: list[int | None] = list(range(torch.cuda.device_count()))
    if options.tiny:
        cards = [None]
    if not cards:
        sys.exit("bench.gpu: torch finds no GPU — run it on a machine with one, or with --tiny here")
    rows = TINY if options.tiny else {name: row for name, row in ROWS.items() if name in (options.rows or ROWS)}
    results: dict[str, list[dict[str, Any]]] = {name: [{}] * len(cards) for name in rows}
    options.into.mkdir(parents=True, exist_ok=True)

    def run(place: int) -> None:
        for name, row in rows.items():
            results[name][place] = one = measured(row, cards[place])
            print(f"{name}, card {place}: {one.get('tflops', one.get('failed'))}", file=sys.stderr)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(cards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (options.into / "results.json").write_text(json.dumps(results, indent=1))
    Console(width=130).print(table(results))
    print(chart(results, options.into / "chart.png"))


if __name__ == "__main__":
    main()
