"""One run directory of several hosts, each with a launcher of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.one_host.processes import Identity
from ascend_adapt.launch.one_host.run_directory import Job, RunDirectory
from ascend_adapt.launch.one_host.stop import stop

STATUS = "adapt-status.{}.json"


def test_a_launcher_leaves_what_another_hosts_ranks_have_written(tmp_path):
    first, second = RunDirectory(tmp_path), RunDirectory(tmp_path, 1)
    first.create()
    for rank in range(6):
        (tmp_path / STATUS.format(rank)).touch()
        (first.failures / f"{rank}.4711.json").touch()
    first.job.write_text("{}")
    second.create(elsewhere={0, 1})
    left = [STATUS.format(0), STATUS.format(1)]
    assert sorted(one.name for one in tmp_path.glob("adapt-status.*")) == left
    assert sorted(one.name for one in first.failures.iterdir()) == ["0.4711.json", "1.4711.json"]
    assert first.job.exists()
    assert first.job != second.job


def test_a_job_alone_clears_all_of_an_earlier_one(tmp_path):
    folder = RunDirectory(tmp_path)
    folder.create()
    for name in (
        STATUS.format(3),
        STATUS.format("p12"),
        "rehearsal.json",
        "rehearsal.1.json",
        "beacons/12",
        "failures/0.12.json",
    ):
        (tmp_path / name).touch()
    folder.create()
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["beacons", "failures"]


def test_stop_ends_what_runs_on_this_host_whichever_launcher_it_is(tmp_path):
    gone = subprocess.Popen(["true"])
    was = Identity.of(gone.pid)
    gone.wait()
    first, second = RunDirectory(tmp_path), RunDirectory(tmp_path, 1)
    first.create()
    elsewhere = Job("another-host", "another-boot", was, was)
    elsewhere.write(first)
    with pytest.raises(LaunchError, match=r"its job runs on another-host, this is .* — stop it there"):
        stop(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as running:
        here = Identity.of(running.pid)
        Job.here(here, here).write(second)
        try:
            with pytest.raises(LaunchError, match="is in use by a running job"):
                second.create(elsewhere={0})
        except BaseException:
            running.kill()
            raise
        ended = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from ascend_adapt.launch.one_host.stop import *; print(stop(Path({str(tmp_path)!r})))",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert running.wait(60) == -signal.SIGTERM
        assert ended.communicate(timeout=60)[0] == "ended\n"
    assert json.loads(first.job.read_text())["host"] == "another-host"
