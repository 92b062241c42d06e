"""``python -m bench.session --minutes 9.5``: every measurement on GPUs, the most valuable first, within a time limit.

It runs the tables in turn (``bench.gpus``, then ``bench.gpu``), each with the time that is left. Finished rows are kept
in ``--into`` and are not run again: call it until nothing is left. ``--copy`` is a folder for another copy of the
results, such as one that is fetched from the host.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TABLES = ("bench.gpus", "bench.gpu")
"""Layouts on several GPUs, then one GPU: speed compared with peers, memory with its prediction, public programs."""
LEAST = 60.0
"""No table starts with fewer seconds left."""


def run(seconds: float, into: Path, tiny: bool, call: Callable[[list[str]], int], clock: Callable[[], float]) -> int:
    """Run the tables within ``seconds``, also after one has failed; return the largest exit code or signal."""
    ends, codes = clock() + seconds, [0]
    for table in TABLES:
        left = ends - clock()
        if left < LEAST:
            print(f"{table}: not started, {left:.0f} s are left", file=sys.stderr)
            continue
        words = [sys.executable, "-m", table, "--minutes", f"{left / 60:.2f}", "--into", str(into / table)]
        codes.append(abs(call([*words, *["--tiny"] * tiny])))
    return max(codes)


def main() -> int:
    """Run the tables and copy their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--into", type=Path, default=Path("runs/session"))
    parser.add_argument("--copy", type=Path)
    parser.add_argument("--tiny", action="store_true", help="the smallest shapes on the CPU")
    asked = parser.parse_args()
    asked.into.mkdir(parents=True, exist_ok=True)
    try:
        return run(60 * asked.minutes, asked.into, asked.tiny, subprocess.call, time.monotonic)
    finally:
        if asked.copy is not None:
            shutil.copytree(asked.into, asked.copy, dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
