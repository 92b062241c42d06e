"""Run the tests that depend on time while four processes are busy: ``make stress``.

    python tests/stress.py [PATH ...]      all of them, or those in a file or folder of tests/; exit code 1 on a failure

They are found in the tree: test files that sleep, look at a clock, wait with a deadline or send signals. Each has ten
minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parent
BUSY = 4
SECONDS = 600
_TIMED = re.compile(
    r"\bsleep\b|\bmonotonic\b|\bperf_counter\b|\bdeadline\b|SIG(TERM|INT|HUP|USR1|STOP)\b|EXEC_TIMEOUT\b"
)


def timed() -> list[str]:
    """Return the test files that depend on time, as paths in tests/."""
    found = [path for path in sorted(TESTS.rglob("test_*.py")) if _TIMED.search(path.read_text())]
    return [str(path.relative_to(TESTS)) for path in found]


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
    """Run the files that are in one of ``names``; return the exit code."""
    files = [path for path in timed() if not names or any(path.startswith(name) for name in names)]
    if not files:
        print(f"stress: {', '.join(names)}: no test there depends on time - choose from {', '.join(timed())}")
        return 2
    failed = []
    for path in files:
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{path}"]
        with busy():
            try:
                ended = subprocess.run(command, cwd=TESTS.parent, timeout=SECONDS, capture_output=True, text=True)
                output, is_good = ended.stdout, ended.returncode == 0
            except subprocess.TimeoutExpired:
                output, is_good = f"not done after {SECONDS} s", False
        print(f"{path}: {output.strip().splitlines()[-1]} ({time.monotonic() - began:.0f} s)", flush=True)
        if not is_good:
            failed.append(path)
            print(output, flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
