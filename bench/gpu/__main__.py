"""``python -m bench.gpu``: the native trainer, the product and their peers on one GPU, one table, as JSON and a chart.

Every row (``rows.py``) runs in its own process; a failed row reports its reason. If the host has several GPUs, each
runs the full table, which shows the variation between cards. ``--rows a,b`` selects rows. By default, rows that are in
``results.json`` are not run again, and no row starts that would end after ``--minutes``: call again for the rest.
``--tiny`` runs every row with the smallest shapes on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.gpu import command_line
from bench.gpu.rows import ROWS, Row

SLACK = 4
"""A row is stopped after its estimate times this, because ``--tiny`` on a busy host may take longer than a GPU."""
Results = dict[str, list[dict[str, Any]]]


def measured(row: Row, card: str | None) -> dict[str, Any]:
    """Run a row on a GPU, or with --tiny on the CPU; return its result, or the reason why it failed."""
    environ = {"ASCEND_ADAPT_DEVICE": "cpu"} if card is None else {"CUDA_VISIBLE_DEVICES": card}
    words = [sys.executable, "-m", *row.words, *(["--tiny"] if card is None else [])]
    limit, began = row.seconds * SLACK, time.monotonic()
    try:
        ended = subprocess.run(
            words, capture_output=True, text=True, errors="replace", env={**os.environ, **environ}, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"stopped after {limit:g} s, its estimate times {SLACK}"}
    found = command_line.result(ended.stdout, ended.stderr, ended.returncode)
    return found if "failed" in found else {**found, "row_s": round(time.monotonic() - began)}


def visible(count: int) -> list[str]:
    """Return the names of the GPUs that this process may use, for CUDA_VISIBLE_DEVICES."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")[:count]


def jobs(results: Results) -> Table:
    """Return the training jobs, one per row, with every card's model TFLOP/s."""
    made = Table(title="model TFLOP/s on each card; other columns: the first card")
    for column in (
        "job",
        "TFLOP/s",
        "sustained",
        "step, ms",
        "GPU busy, ms",
        "reserved, GiB",
        "first steps, s",
        "last loss",
    ):
        made.add_column(column, justify="left" if column == "job" else "right")
    for name, runs in results.items():
        first = next((one for one in runs if "tflops" in one), None)
        if first is None:
            continue
        speeds = ", ".join(f"{one['tflops']:.1f}" if "tflops" in one else "failed" for one in runs)
        numbers = [first.get(key) for key in ("sustained_tflops", "step_ms", "busy_ms", "peak_gib", "warm_up_s")]
        cells = ["" if number is None else f"{number:.1f}" for number in numbers]
        made.add_row(name, speeds, *cells, f"{first['losses'][-1]:.3f}")
    return made


def comparisons(results: Results) -> Table:
    """Return the comparisons within each row, with every card's ratio."""
    made = Table(title="compared within the row: our time over the peer's")
    for column in ("what", "ratio", "wanted", "on the first card"):
        made.add_column(column)
    for runs in results.values():
        ran = [one["compared"] for one in runs if "compared" in one]
        for each in zip(*ran, strict=True):
            ratios = ", ".join(f"{one['ratio']:.3f}" for one in each)
            made.add_row(each[0]["what"], ratios, each[0]["wanted"], each[0]["details"])
    return made


def failures(results: Results) -> list[str]:
    """Return the rows that failed or did not run, with the reason."""
    return [
        f"{name}, card {card}: {one.get('failed', 'not run')}"
        for name, runs in results.items()
        for card, one in enumerate(runs)
        if "failed" in one or not one
    ]


def chart(results: Results, path: Path) -> str:
    """Draw the chart of the speeds; return a note if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no chart: matplotlib is not installed"
    ran = {name: [one["tflops"] for one in runs if "tflops" in one] for name, runs in results.items()}
    ran = {name: speeds for name, speeds in ran.items() if speeds}
    figure = Figure(figsize=(8, 0.45 * len(ran) + 1.2), layout="constrained")
    axes = figure.subplots()
    for place, (name, speeds) in enumerate(reversed(ran.items())):
        axes.barh(place, sum(speeds) / len(speeds), color="#c7000b" if ROWS[name].is_ours else "#9aa0a6")
        axes.plot(speeds, [place] * len(speeds), "k|", markersize=10)
    axes.set_yticks(range(len(ran)), list(reversed(ran)))
    axes.set_xlabel("model TFLOP/s; a mark is one card")
    figure.savefig(path, dpi=140)
    return f"chart: {path}"


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    seconds = {name: row.seconds for name, row in ROWS.items()}
    return command_line.parser(__doc__, seconds, "runs/bench-gpu", "the smallest shapes on the CPU")


def main() -> None:
    """Run the rows and print both tables."""
    options, began = parser().parse_args(), time.monotonic()
    import torch

    cards: list[str | None] = [None] if options.tiny else [*visible(torch.cuda.device_count())]
    if not cards:
        sys.exit("bench.gpu: torch finds no GPU — run it on a host with a GPU, or with --tiny")
    options.into.mkdir(parents=True, exist_ok=True)
    saved = options.into / "results.json"
    results: Results = json.loads(saved.read_text()) if saved.is_file() else {}
    wanted = options.rows or [
        name for name in ROWS if any("failed" in one or not one for one in results.get(name, [{}]))
    ]
    results |= {name: [{}] * len(cards) for name in wanted}
    writing = threading.Lock()

    def run(place: int) -> None:
        for name in wanted:
            ends = time.monotonic() - began + ROWS[name].seconds
            if ends > 60 * options.minutes and not options.tiny:
                one = {"failed": f"not run: {ROWS[name].seconds} s would end after --minutes {options.minutes:g}"}
            else:
                one = measured(ROWS[name], cards[place])
            with writing:
                results[name][place] = one
                saved.write_text(json.dumps(results, indent=1))
            took = one.get("row_s", "?")
            print(
                f"{name}, card {place}: {one.get('tflops', one.get('failed', 'compared'))}, {took} s", file=sys.stderr
            )

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(cards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    console = Console(width=150)
    console.print(jobs(results), comparisons(results))
    for line in failures(results):
        print(line)
    print(chart(results, options.into / "chart.png"))


if __name__ == "__main__":
    main()
