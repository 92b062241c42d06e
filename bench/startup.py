"""Startup overhead: an empty script compared with torchrun, and a helper process with a plain interpreter.

Both sides of a pair alternate, so that other load on the machine affects both.

    python bench/startup.py --pairs 10
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ascend_adapt.launch.placement import environment

RATIO_WANTED = 1.15
HELPER_WANTED_MS = 5.0
HELPERS_PER_PAIR = 10


def seconds(command: Sequence[str], folder: str, env: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    known = parser.parse_args()
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    python = sys.executable
    torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "empty.py"]
    ours = [python, "-m", "ascend_adapt.launch.cli", "--nproc", "2", "--device", "cpu", "--log-dir", "run", "empty.py"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "empty.py").write_text("")
        Path(folder, "run", "beacons").mkdir(parents=True)
        reached = {
            **environ,
            "PYTHONPATH": environment.python_path(environ.get("PYTHONPATH", "")),
            "ASCEND_ADAPT_TARGETS": "deepspeed,megatron,torch",
            "ASCEND_ADAPT_RUN_DIR": str(Path(folder, "run")),
        }
        jobs = [(seconds(ours, folder, environ), seconds(torchrun, folder, environ)) for _ in range(known.pairs)]
        helper = [python, "-c", ""]
        helpers = [
            (seconds(helper, folder, reached), seconds(helper, folder, environ))
            for _ in range(known.pairs * HELPERS_PER_PAIR)
        ]
    ratio = statistics.median(mine / theirs for mine, theirs in jobs)
    cost_ms = 1000 * statistics.median(mine - theirs for mine, theirs in helpers)
    print(f"ascend-run {statistics.median(mine for mine, _ in jobs):.2f} s", end=", ")
    print(f"torchrun {statistics.median(theirs for _, theirs in jobs):.2f} s: ratio {ratio:.2f}", end=" ")
    print(f"(median of {len(jobs)} pairs; goal: at most {RATIO_WANTED})")
    print(f"a helper process: {cost_ms:+.2f} ms (median of {len(helpers)} pairs; goal: at most {HELPER_WANTED_MS})")
    return 0 if ratio <= RATIO_WANTED and cost_ms <= HELPER_WANTED_MS else 1


if __name__ == "__main__":
    sys.exit(main())
