"""`ascend-adapt stop`, and two jobs on one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ascend_adapt.launch.one_host.processes import Identity

SCRIPT = (
    "import os, signal\n"
    "print(os.getpid(), os.environ['MASTER_PORT'], os.environ.get('HCCL_IF_BASE_PORT'), flush=True)\n"
    "signal.pause()"
)


def stop(folder, cwd):
    command = [sys.executable, "-m", "ascend_adapt.cli", "stop", folder]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280)


def test_stopping_one_of_two_jobs_leaves_the_other(background, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    jobs = [background("--nproc", "2", "--log-dir", f"run{n}", "train.py") for n in (1, 2)]
    reported = [[line.split() for line in job.lines(2)] for job in jobs]
    ranks = [[Identity.of(int(pid)) for pid, *_ in lines] for lines in reported]
    assert len({port for lines in reported for _, port, _ in lines}) == 2

    stopped = stop("run1", tmp_path)
    assert (stopped.returncode, stopped.stdout) == (0, "ascend-adapt stop: the job of run1 ended\n")
    assert jobs[0].code() == 143
    assert not any(rank.is_alive() for rank in ranks[0])
    assert jobs[1].process.poll() is None
    assert all(rank.is_alive() for rank in ranks[1])

    again = stop("run1", tmp_path)
    assert (again.returncode, again.stdout) == (
        0,
        "ascend-adapt stop: the job of run1 had already ended, with exit code 143\n",
    )


def test_a_job_whose_launcher_was_killed_and_whose_pid_somebody_else_has(background, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    job = background("--log-dir", "run", "train.py")
    job.lines(1)
    reported = json.loads((tmp_path / "run" / "job.json").read_text())
    with subprocess.Popen(["sleep", "1000"]) as foreign:
        # As if both pids had been given away since.
        for role in ("launcher", "guardian"):
            reported[role]["pid"] = foreign.pid
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "job.json").write_text(json.dumps(reported))
        stopped = stop("other", tmp_path)
        assert (stopped.returncode, foreign.poll()) == (0, None)
        assert "had already ended, with exit code unknown" in stopped.stdout
        foreign.kill()


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (None, "has no job.json, expected a run directory — pass the one that ascend-run printed"),
        ("{", "is not a job file"),
        ("{}", "is not a job file"),
        ('{"host": "elsewhere", "boot": "", "launcher": {"pid": 1, "start": 1}, "guardian": {"pid": 1, "start": 1}}',
         "its job runs on elsewhere, this is "),
    ],
)  # fmt: skip
def test_what_cannot_be_stopped_is_reported_in_one_line(text, reported, tmp_path):
    if text is not None:
        (tmp_path / "job.json").write_text(text)
    stopped = stop(str(tmp_path), tmp_path)
    assert stopped.returncode == 1
    assert reported in stopped.stderr
    assert stopped.stderr.count("\n") == 1


def test_a_job_of_an_earlier_start_of_the_machine(tmp_path):
    identity = {"pid": os.getpid(), "start": Identity.of(os.getpid()).start}
    job = {"host": os.uname().nodename, "boot": "earlier", "launcher": identity, "guardian": identity}
    (tmp_path / "job.json").write_text(json.dumps(job))
    assert "had ended before this host was restarted" in stop(str(tmp_path), tmp_path).stdout
