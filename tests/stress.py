"""Run the tests that depend on time while four processes are busy: ``make stress``.

    python tests/stress.py [FOLDER ...]      all folders of tests/, or those named; exit code 1 on any failure

They are found in the tree: test files that sleep, look at a clock, wait with a deadline or send signals. A folder has
ten minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parent
BUSY = 4
SECONDS = 600
_TIMED = re.compile(r"\bsleep\b|\bmonotonic\b|\bperf_counter\b|\bdeadline\b|SIG(TERM|INT|HUP|USR1|STOP)\b")


def timed() -> dict[str, list[str]]:
    """Return the test files that depend on time, by their folder in tests/."""
    found = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        if _TIMED.search(path.read_text()):
            found[path.relative_to(TESTS).parts[0]].append(str(path))
    return found


@contextmanager
def busy() -> Iterator[None]:
    """Keep BUSY processes computing; each ends by itself if this one is killed."""
    code = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(10**6))"
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main(names: list[str]) -> int:
    """Run the folders; return the exit code."""
    files = timed()
    if unknown := [name for name in names if name not in files]:
        print(f"stress: {', '.join(unknown)}: not a folder with timed tests - choose from {', '.join(files)}")
        return 2
    failed = False
    for name in names or files:
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files[name]]
        with busy():
            try:
                failed |= subprocess.run(command, cwd=TESTS.parent, timeout=SECONDS).returncode != 0
            except subprocess.TimeoutExpired:
                print(f"{name}: not done after {SECONDS} s")
                failed = True
        print(f"{name}: {len(files[name])} files, {time.monotonic() - began:.0f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
