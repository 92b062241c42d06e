"""make vendor-tests: every chosen test has a result, after a crash and an endless test too; ranks are forked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

VENDOR = Path(__file__).parent / "vendor"
FILE = """
import multiprocessing, os, signal, unittest
def test_passes(): pass
def test_fails(): raise ValueError("wrong number")
def test_ends_the_process(): os.kill(os.getpid(), signal.SIGSEGV)
def test_never_ends():
    while True: pass
def test_comes_last(): pass
def rank(queue):
    import worker
    queue.put((worker.RUNS_HERE, os.environ["OF_THE_TEST"]))
    raise SystemExit(3)
def test_starts_a_rank():
    os.environ["OF_THE_TEST"] = "set"
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    process = spawn.Process(target=rank, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == (True, "set")
    process.join()
    assert process.exitcode == 3
class Chosen(unittest.TestCase):
    def __init__(self, name="runTest"):
        super().__init__(name)
        getattr(self, name)
    def test_method(self): pass
"""
RUN = """
import sys
from pathlib import Path
import worker
worker.RUNS_HERE = True
worker.run(Path(sys.argv[1], "distributed", "test_it.py"), Path(sys.argv[1], "results.jsonl"), seconds=0.5, cases=9)
"""
KEEP = """
import json, sys
from pathlib import Path
import run
old = {"tag": run.TAG, "op-plugin": run.OP_PLUGIN, "files": {"a.py": 1, "b.py": 2}}
found = run.summary(Path(sys.argv[1]), set(), [])
print(json.dumps([run.kept(old) | found, run.kept({**old, "tag": "another"})]))
"""


CLASSIFY = """
import json, run
lacks = "AssertionError: False is not true\\n[W1130 09:53:16.1 A.cpp:47] Warning: Failed to find function x.\\n"
errors = (lacks, "RuntimeError: Failed to find function aclrtX\\n" + lacks)
print(json.dumps([run.classify("a.py", "test", "failed", error, set(), [])[0] for error in errors]))
"""


def test_a_warning_is_not_why_a_test_fails():
    command = [sys.executable, "-c", CLASSIFY]
    process = subprocess.run(command, cwd=VENDOR, check=True, capture_output=True, text=True, timeout=120)
    assert json.loads(process.stdout) == ["wrong", "not emulated"]


def test_every_test_has_a_result(tmp_path):
    (tmp_path / "distributed").mkdir()
    (tmp_path / "distributed" / "test_it.py").write_text(FILE)
    subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], cwd=VENDOR, check=True, timeout=120)
    entries = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    found = {entry["test"]: (entry["outcome"], entry["error"].splitlines()[:1]) for entry in entries}
    assert found == {
        "(file)": ("collected", ["7"]),
        "test_passes": ("passed", []),
        "test_fails": ("failed", ["ValueError: wrong number"]),
        "test_ends_the_process": ("crashed", ["killed by SIGSEGV"]),
        "test_never_ends": ("time limit", ["0.5 s"]),
        "test_comes_last": ("passed", []),
        "test_starts_a_rank": ("passed", []),
        "Chosen::test_method": ("passed", []),
    }


def test_a_run_in_a_new_folder_adds_to_the_record(tmp_path):
    passed = {"test": "test_it", "outcome": "passed", "error": ""}
    ended = {"test": "", "outcome": "ended", "error": ""}
    for file, entries in (("b.py", [passed]), ("c.py", [passed, ended])):
        (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    command = [sys.executable, "-c", KEEP, str(tmp_path)]
    process = subprocess.run(command, cwd=VENDOR, check=True, capture_output=True, text=True, timeout=120)
    kept, of_another_tag = json.loads(process.stdout)
    assert kept == {"a.py": 1, "b.py": 2, "c.py": {"cases": 0, "counts": {"passed": 1}}}
    assert of_another_tag == {}
