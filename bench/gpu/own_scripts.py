"""An unmodified public program under ``ascend-run`` and under plain python: losses and step time.

``python -m bench.gpu.own_scripts JOB [--tiny]``: JOB is a job of ``tests/upstream_runs/own_scripts``, such as nanoGPT.
Its checkout is in the folder ``ASCEND_ADAPT_UPSTREAMS``. Both sides run in turn; the time of a step is the median
between printed losses after the first ones. ``--tiny`` runs on the CPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.comparison import Compared, report

UPSTREAM_RUNS = Path(__file__).parents[2] / "tests" / "upstream_runs"
ROUNDS, WARM_UP = 2, 3


def compared(plain: Sequence[Any], ours: Sequence[Any]) -> list[Compared]:
    """Return the comparison of two sides' runs."""
    first, other = plain[0].losses, ours[0].losses
    apart = sum(one != two for one, two in zip(first, other, strict=False)) + abs(len(first) - len(other))
    rows = [Compared("losses that differ from the program's own", apart, "0", f"{len(other)} losses")]
    times = [statistics.median(each) if (each := step_times(runs)) else None for runs in (plain, ours)]
    if times[0] and times[1]:
        details = f"{times[0] * 1e3:.1f} ms alone, {times[1] * 1e3:.1f} under ascend-run"
        rows.append(Compared("step time", times[1] / times[0], "at most 1.01", details))
    return rows


def step_times(runs: Sequence[Any]) -> list[float]:
    """Return the seconds between the losses that the runs printed, without the first steps and unflushed lines."""
    return [
        later - sooner
        for run in runs
        for sooner, later in zip(run.times[WARM_UP:], run.times[WARM_UP + 1 :], strict=False)
        if later - sooner > 1e-4
    ]


def main() -> None:
    """Run both sides in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    sys.path.insert(0, str(UPSTREAM_RUNS))
    import upstream_job
    from code_bases import NotHere

    ((_, job),) = upstream_job.chosen([f"own_scripts:{asked.job}"])
    try:
        checkout = job.checkout(os.environ)
    except NotHere as error:
        sys.exit(f"own_scripts:{asked.job}: {error}")
    device = "cpu" if asked.tiny else "cuda"
    sides: dict[str, list[Any]] = {"plain": [], "ours": []}
    with tempfile.TemporaryDirectory() as name:
        shared = Path(name) / "shared"
        shared.mkdir()
        for number in range(1 if asked.tiny else ROUNDS):
            for side, runs in sides.items():
                folder = Path(name) / f"{side}-{number}"
                place = upstream_job.Place(folder, shared, checkout or shared, device, "float32")
                ended = upstream_job.run(job, place, adapt=side == "ours", plain=side == "plain")
                if ended.problems:
                    sys.exit(f"own_scripts:{asked.job}, {side}: {'; '.join(ended.problems)}")
                runs.append(ended)
    report(f"{asked.job} alone", compared(sides["plain"], sides["ours"]))


if __name__ == "__main__":
    main()
