"""make vendor-tests: a file with a crash and an endless test still has a result for every chosen test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

VENDOR = Path(__file__).parent / "vendor"
FILE = """
import os, signal
def test_passes(): pass
def test_fails(): raise ValueError("wrong number")
def test_ends_the_process(): os.kill(os.getpid(), signal.SIGSEGV)
def test_never_ends():
    while True: pass
def test_comes_last(): pass
"""
RUN = """
import sys
from pathlib import Path
import worker
worker.run(Path(sys.argv[1], "test_it.py"), Path(sys.argv[1], "results.jsonl"), seconds=0.5, cases=9)
"""


def test_every_test_has_a_result(tmp_path):
    (tmp_path / "test_it.py").write_text(FILE)
    subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], cwd=VENDOR, check=True, timeout=120)
    entries = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    found = {entry["test"]: (entry["outcome"], entry["error"].splitlines()[:1]) for entry in entries}
    assert found == {
        "(file)": ("collected", ["5"]),
        "test_passes": ("passed", []),
        "test_fails": ("failed", ["ValueError: wrong number"]),
        "test_ends_the_process": ("crashed", ["killed by SIGSEGV"]),
        "test_never_ends": ("time limit", ["0.5 s"]),
        "test_comes_last": ("passed", []),
    }
