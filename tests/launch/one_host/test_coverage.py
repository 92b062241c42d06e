from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ascend_adapt.launch.one_host.coverage import CoverageWatch, why_unreached
from ascend_adapt.launch.one_host.run_directory import RunDirectory

REACHED = "/x:/our/bootstrap"


@pytest.mark.parametrize(
    ("argv", "python_path", "why"),
    [
        (["python", "train.py", "-I"], REACHED, ""),
        (["python", "-u", "-m", "train", "-S"], REACHED, ""),
        (["python", "-c", "pass", "-E"], REACHED, ""),
        (["python", "-W", "ignore", "train.py"], REACHED, ""),
        (["python", "-WEIS", "train.py"], REACHED, ""),
        (["python", "-mEIS"], REACHED, ""),
        (["python", "--check-hash-based-pycs", "always"], REACHED, ""),
        (["python"], REACHED, ""),
        (["python", "-I", "train.py"], REACHED, "its interpreter was started with -I"),
        (["python", "-uBE", "train.py"], REACHED, "its interpreter was started with -E"),
        (["python", "-u", "-S", "-c", "pass"], REACHED, "its interpreter was started with -S"),
        (["python", "-Ic", "pass"], REACHED, "its interpreter was started with -I"),
        (["python", "train.py"], "", "its PYTHONPATH was cleared or overwritten"),
        (["python", "train.py"], "/our/bootstrap/not:/x", "its PYTHONPATH was cleared or overwritten"),
    ],
)
def test_why(argv, python_path, why):
    assert why_unreached(argv, python_path, "/our/bootstrap") == why


@pytest.fixture
def run_dir(tmp_path):
    run_dir = RunDirectory(tmp_path / "run")
    run_dir.create()
    return run_dir


@pytest.mark.parametrize("has_beacon", [True, False])
def test_a_rank_without_a_beacon_and_the_copies_it_forks(has_beacon, run_dir):
    """A forked copy, such as a DataLoader's worker, has no beacon of its own and needs none."""
    code = "import os, sys\nif os.fork(): print(os.getpid(), flush=True)\nsys.stdin.read()"
    env = {**os.environ, "RANK": "5", "PYTHONPATH": "/our/bootstrap"}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdin=-1, stdout=-1, text=True) as rank:
        pid = int(rank.stdout.readline())
        if has_beacon:
            (run_dir.beacons / str(pid)).touch()
        watch = CoverageWatch(run_dir, "/our/bootstrap", settled_s=0)
        found = watch.look()
        again = watch.look()
        rank.stdin.close()
    missing = [] if has_beacon else [("5", pid, "it left no beacon file")]
    assert [(one.rank, one.pid, one.why) for one in found] == missing
    assert again == []


def test_a_process_that_is_no_rank(run_dir):
    with subprocess.Popen([sys.executable, "-I", "-c", "import sys; sys.stdin.read()"], stdin=-1) as helper:
        assert CoverageWatch(run_dir, "/our/bootstrap", settled_s=0).look() == []
        helper.stdin.close()
