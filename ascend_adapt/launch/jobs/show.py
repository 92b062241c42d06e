"""`--dry-run`: prints the plan of a job as text or JSON."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from ascend_adapt import terminal
from ascend_adapt.launch.jobs.job import Job

_GB = 1e9
_STYLES = {"plan: ": "bold", "nothing was started": "bold", "note: ": "yellow"}


def show(job: Job, as_json: bool) -> int:
    """Print the plan and return exit code 0."""
    plan = job.to_json()
    # A reader such as head may close the pipe early: exit like other programs, without a traceback.
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        if as_json:
            print(json.dumps(plan, indent=1))
        else:
            for line in described(plan, job.run_dir.shown, os.environ):
                if style := next((style for start, style in _STYLES.items() if line.startswith(start)), ""):
                    terminal.line(line, style)
                else:
                    print(line)  # Users copy commands and values, so lines are not wrapped.
        sys.stdout.flush()
    finally:
        signal.signal(signal.SIGPIPE, before)
    if as_json:
        for note in job.notes:
            print(f"ascend-run: {note}", file=sys.stderr)
    return 0


def described(plan: Mapping[str, Any], run_dir: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a plan: hosts and ranks, layout, memory, and variables that differ from this environment."""
    ranks, first = plan["ranks"], plan["ranks"][0]
    hosts = list(dict.fromkeys(rank["host"] for rank in ranks))
    if plan["world_size"] is None:
        yield f"plan: one process on {first['host']}, device {first['device']}; the command starts the ranks"
    else:
        count = f"{plan['world_size']} rank{'s' * (plan['world_size'] > 1)}"
        here = f", {len(ranks)} of them started here" if len(ranks) < plan["world_size"] else ""
        yield f"plan: {count} on {len(hosts)} host{'s' * (len(hosts) > 1)}{here}, device {_kind(first['device'])}"
        yield f"rendezvous: {plan['master_addr']}:{plan['master_port']}"
    yield f"command: {shlex.join(first['argv'])}"
    yield f"run directory: {run_dir}"
    if plan["world_size"] is not None:
        for host, of_host in groupby(ranks, key=lambda rank: rank["host"]):
            numbers = [rank["rank"] for rank in of_host]
            yield f"host {host}: rank{'s' * (len(numbers) > 1)} {_range(numbers)}"
    if "layout" in plan:
        yield from _layout(plan)
    yield "environment that differs from this shell:"
    common = dict(set.intersection(*(set(rank["env"].items()) for rank in ranks)))
    for name, value in sorted(common.items()):
        if environ.get(name) != value:
            yield f"  {name}={_short(value)}"
    if own := sorted({name for rank in ranks for name in rank["env"]} - common.keys()):
        yield f"  different for each rank: {', '.join(own)}"
    for note in plan.get("notes", ()):
        yield f"note: {note}"
    yield "nothing was started"


def _layout(plan: Mapping[str, Any]) -> Iterator[str]:
    layout, parameters = plan["layout"], plan["parameters"]
    yield f"layout: data {layout['data']} x pipeline {layout['pipeline']} x tensor {layout['tensor']}"
    yield f"parameters: {parameters['total'] / _GB:.3f} B"
    stages = {rank["pipeline"]: rank for rank in layout["ranks"]}
    memory = {one["rank"]: one for one in plan["memory_bytes"]}
    for stage, rank in sorted(stages.items()):
        held = memory[rank["rank"]]
        parts = ", ".join(f"{name} {size / _GB:.2f}" for name, size in held.items() if name not in ("rank", "total"))
        layers = ", ".join(f"{first} to {last}" for first, last in rank["layers"]) or "none"
        yield (
            f"  stage {stage}: layers {layers}, {parameters['per_rank'][stage] / _GB:.3f} B parameters per rank, "
            f"about {held['total'] / _GB:.2f} GB per rank ({parts})"
        )


def _kind(device: str) -> str:
    return device if device.startswith("npu-emulated") else device.partition(":")[0]


def _range(numbers: list[int]) -> str:
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))) and len(numbers) > 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _short(value: str, most: int = 160) -> str:
    return value if len(value) <= most else f"{value[:most]}... ({len(value)} characters)"
