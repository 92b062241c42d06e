"""``python -m bench.gpus``: layouts of the native trainer and peers on several GPUs of one host, as a table.

Every row (``rows.py``) runs in its own processes, one per GPU; a failed row reports its reason. A GPU trains one row at
a time, while the next row starts up; rows of one rank use the GPUs in turn. ``--rows a,b`` selects rows. By default,
rows that are in ``results.json`` are not run again, and no row starts that would end after ``--minutes``. ``--tiny``
runs every row on CPU ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.gpu import command_line
from bench.gpus.rows import ROWS, Row

SLACK = 3
"""A row is stopped after its estimate times this, because ``--tiny`` on a busy host may take longer than GPUs."""
Results = dict[str, dict[str, Any]]


def measured(
    name: str, row: Row, cards: Sequence[int], gates: str, jobs: list[subprocess.Popen[str]], *, tiny: bool
) -> dict[str, Any]:
    """Run a row on GPUs, or with --tiny on the CPU; return its result or its failure, and add its job to ``jobs``."""
    environ = {**row.environ, "BENCH_ROW": name, "BENCH_GATES": gates, "BENCH_CARDS": ",".join(map(str, cards))}
    environ |= {"ASCEND_ADAPT_DEVICE": "cpu"} if tiny else {"CUDA_VISIBLE_DEVICES": environ["BENCH_CARDS"]}
    words = [sys.executable, "-m", "bench.gpus.job", *row.words, *(["--tiny"] if tiny else [])]
    limit, began = row.seconds * SLACK, time.monotonic()
    job = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **environ},
        start_new_session=True,
    )
    jobs.append(job)
    try:
        printed, errors = job.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        end(job)
        job.communicate()
        return {"failed": f"stopped after {limit:g} s, its estimate times {SLACK}"}
    found = command_line.result(printed, errors, job.returncode)
    return found if "failed" in found else {**found, "row_s": round(time.monotonic() - began)}


def end(job: subprocess.Popen[str]) -> None:
    """Kill a running job and its ranks, which may be waiting for each other."""
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)


def placed(names: Sequence[str], cards: int) -> Iterator[tuple[str, list[int]]]:
    """Yield the rows in order with their GPUs, which rows of one rank use in turn."""
    turn = 0
    for name in names:
        ranks = ROWS[name].ranks
        yield name, [turn % cards] if ranks == 1 else list(range(ranks))
        turn = turn + 1 if ranks == 1 else 0


def table(results: Results) -> Table:
    """Return the table: step times of the slowest rank, and memory of each rank."""
    made = Table(title="model TFLOP/s a GPU; a step in ms: exposed communication, and GPU idle because of the host")
    for column in ("row", "TFLOP/s", "of one", "step", "busy", "collectives", "exposed", "idle", "host", "GiB", "loss"):
        made.add_column(column, justify="left" if column == "row" else "right")
    for name, one in results.items():
        if "tflops" not in one:
            continue
        reference = results.get("345M-one" if name.startswith("345M") else "one", {}).get("tflops")
        share = f"{one['tflops'] / reference:.2f}" if reference else ""
        seen = (one["traces"] or [{}])[0]
        times = [
            f"{seen[key]:.1f}" if seen else "" for key in ("busy", "communication", "exposed", "idle", "idle_host")
        ]
        memory = ", ".join(f"{each:.1f}" for each in one["peak_gib"])
        made.add_row(
            name, f"{one['tflops']:.1f}", share, f"{one['step_ms']:.1f}", *times, memory, f"{one['losses'][-1]:.4f}"
        )
    return made


def losses(results: Results) -> list[str]:
    """Return the largest difference of each native layout's losses from those of one process on the same samples."""
    native = {name: one for name, one in results.items() if one.get("side") == "native"}

    def kind(one: dict[str, Any]) -> tuple[Any, ...]:
        data = one["ranks"] // (one["tensor"] * one["pipeline"])
        return one["shape"], one["micro_batch"] * one["accumulation"] * data

    alone = [one for one in native.values() if one["ranks"] == 1]
    lines = []
    for name, one in native.items():
        # Gradients of other micro batches are rounded elsewhere.
        same = [each for each in alone if kind(each) == kind(one)]
        same = [each for each in same if each["micro_batch"] == one["micro_batch"]] or same
        if one["ranks"] > 1 and same:
            pairs = list(zip(one["losses"], same[-1]["losses"], strict=False))
            apart = [abs(mine - theirs) / theirs for mine, theirs in pairs]
            most = max(apart)
            lines.append(
                f"{name}: {len(pairs)} losses at most {most:.1e} from one process, at step {apart.index(most) + 1}"
            )
    return lines


def repeats(results: Results) -> list[str]:
    """Return what differed in the rows that train several times."""
    return [
        f"{name}: {each['what']}: {each['details']}" for name, one in results.items() for each in one.get("repeats", ())
    ]


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    seconds = {name: row.seconds for name, row in ROWS.items()}
    return command_line.parser(__doc__, seconds, "runs/bench-gpus", "the smallest shape on CPU ranks")


def main() -> None:
    """Run the rows and print the table."""
    options, began = parser().parse_args(), time.monotonic()
    import torch

    cards = 2 if options.tiny else torch.cuda.device_count()
    if cards < 2:
        sys.exit(f"bench.gpus: {cards} GPUs, expected 2 or more — run it on a host with 2 GPUs, or with --tiny")
    options.into.mkdir(parents=True, exist_ok=True)
    saved = options.into / "results.json"
    writing, jobs = threading.Lock(), list[subprocess.Popen[str]]()
    results: Results = json.loads(saved.read_text()) if saved.is_file() else {}
    wanted = options.rows or [name for name in ROWS if "tflops" not in results.get(name, {})]

    with tempfile.TemporaryDirectory() as gates:

        def run(name: str, places: Sequence[int]) -> None:
            row = ROWS[name]
            if time.monotonic() - began + row.seconds > 60 * options.minutes and not options.tiny:
                one = {"failed": f"not run: {row.seconds} s would end after --minutes {options.minutes:g}"}
            else:
                one = measured(name, row, places, gates, jobs, tiny=options.tiny)
            with writing:
                results[name] = one
                saved.write_text(json.dumps(results, indent=1))
            print(f"{name}: {one.get('tflops', one.get('failed'))}, {one.get('row_s', '?')} s", file=sys.stderr)

        threads: list[threading.Thread] = []
        try:
            for name, places in placed(wanted, cards):
                threads.append(threading.Thread(target=run, args=(name, places)))
                threads[-1].start()
                # The next row starts and builds its model while this one trains, and then waits for its GPUs.
                while threads[-1].is_alive() and not (Path(gates) / name).exists():
                    time.sleep(0.1)
            for thread in threads:
                thread.join()
        finally:
            for job in jobs:
                end(job)
    Console(width=150).print(table(results))
    for line in losses(results) + repeats(results):
        print(line)
    for name, one in results.items():
        if "failed" in one:
            print(f"{name}: {one['failed']}")


if __name__ == "__main__":
    main()
