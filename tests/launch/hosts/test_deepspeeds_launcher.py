"""DeepSpeed's own launcher under a hostfile of the guides: its pdsh takes it to another host, adapted there too."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

ARGUMENTS = ["a b", "--x=y"]
RANK_SCRIPT = """
import argparse, json, os, socket, sys
from deepspeed import launcher  # a target, imported late
from ascend_adapt import status
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
known, rest = parser.parse_known_args()
applied = [one.patch for one in status().outcomes if one.state == "applied"]
reported = [socket.gethostname(), os.environ["WORLD_SIZE"], os.environ.get("HCCL_A"), rest, bool(applied)]
with open(f"ds.{os.environ['RANK']}", "w") as out:
    json.dump(reported, out)
"""
# What GPT-NeoX's file of that name does: hand its arguments to DeepSpeed's runner.
DEEPY = "import sys\nfrom deepspeed.launcher.runner import main\nmain(sys.argv[1:])\n"


def releases():
    """DeepSpeed as installed, and 0.9.2 out of its own environment if that was made."""
    yield "installed", Path(sys.executable)
    yield "0.9.2", Path(__file__).parents[3] / ".nox/deepspeed-0-9-2/bin/python"


@pytest.mark.parametrize(("release", "python"), list(releases()), ids=lambda value: str(value)[-9:])
def test_deepy_under_a_hostfile_of_the_guides(slow, cluster, release, python):
    if shutil.which("pdsh") is None:
        pytest.skip("not checked: pdsh: is not installed (Debian: pdsh)")
    if not python.exists():
        pytest.skip(f"not checked: DeepSpeed {release}: {python} is not there (make .nox/deepspeed-0.9.2.installed)")
    cluster.write("train.py", RANK_SCRIPT)
    cluster.write("deepy.py", DEEPY)
    cluster.write("guide", "# the guides' spelling\r\n\r\nw-1 slot=1  # head\r\nw-2 slot=1\r\n")
    given = ["--hostfile", "guide", "--launcher", "pdsh", "--master_addr", "w-1", "--master_port", "29533"]
    run = [
        str(python),
        "-m",
        "ascend_adapt.launch.cli",
        "--log-dir",
        "run-ds",
        "deepy.py",
        *given,
        "train.py",
        *ARGUMENTS,
    ]
    path = f"{python.parent}:{os.environ['PATH']}"
    job = cluster.run("w-1", *run, timeout=250, PATH=path, HCCL_A="64(x2) $HOME", DS_ACCELERATOR="cpu")
    assert job.returncode == 0, job.stdout[-1000:] + job.stderr[-3000:]
    for rank, name in enumerate(("w-1", "w-2")):
        reported = json.loads((cluster.folder(name) / f"ds.{rank}").read_text())
        assert reported == [name, "2", "64(x2) $HOME", ARGUMENTS, True]
    assert "starts ranks itself, so it is started once" in job.stderr
