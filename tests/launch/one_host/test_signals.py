"""Requests by signal: whoever receives them, they count once, a script saves, and nothing is left.

`make signals` tries every cell of the table in docs/reliability.md; here are those that differ from each other.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launch import signal_cells
from launch.signal_cells import Job, faults

from ascend_adapt.launch.one_host.signals import NOT_WAITED_FOR, Requests, Source
from ascend_adapt.launch.one_host.termination import GRACE_S


@pytest.fixture
def job(tmp_path):
    jobs = []

    def start(kind):
        jobs.append(Job(tmp_path, kind))
        return jobs[-1]

    yield start
    for one in jobs:
        one.close()


@pytest.mark.parametrize(
    ("kind", "name", "receiver"),
    [
        ("script with a handler", "SIGTERM", "all processes"),
        ("script with a handler", "SIGHUP", "all processes"),
        ("script with a handler", "SIGUSR1", "all processes"),
        ("script without", "SIGUSR1", "all processes"),
        ("bash, script with a handler", "SIGUSR1", "launcher"),
        ("a second ascend-run", "SIGUSR1", "launcher"),
    ],
)
def test_a_signal_counts_once_and_is_not_silent(job, kind, name, receiver):
    outcome = job(kind).outcome(name, receiver)
    assert faults(kind, receiver, name, outcome) == []


def test_a_schedulers_signal_to_launcher_and_guardian_keeps_the_grace(background, tmp_path):
    """With `--grace` a handler may take longer than a second delivery of the same request."""
    (tmp_path / "train.py").write_text(signal_cells.WITH_HANDLER)
    job = background("--device", "cpu", "--grace", "30", "train.py", stderr=subprocess.PIPE)
    job.lines(1)
    (guardian,) = _children(job.pid)
    for pid in (job.pid, guardian):
        os.kill(pid, signal.SIGTERM)
    assert job.code() == 143
    assert (tmp_path / "saved-0").exists()
    assert "SIGTERM: the job ends, SIGKILL after 30 s" in job.process.stderr.read()


def test_a_second_ctrl_c_does_not_wait(background, tmp_path):
    (tmp_path / "train.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGINT, lambda *_: print('asked', flush=True))\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    job = background("--device", "cpu", "train.py")
    assert job.lines(1) == ["up"]
    began = time.monotonic()
    os.kill(job.pid, signal.SIGINT)
    assert job.lines(1) == ["asked"]
    time.sleep(0.3)
    os.kill(job.pid, signal.SIGINT)
    assert job.code() == 130
    assert time.monotonic() - began < GRACE_S / 2


def test_a_start_is_interruptible(background, tmp_path):
    """SIGTERM while ranks are being started: those that are there are ended, no other is started."""
    (tmp_path / "train.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    job = background("--device", "cpu", "--nproc", "60", "--oversubscribe", "--log-dir", "run", "train.py")
    deadline = time.monotonic() + 30
    while not (guardian := _children(job.pid)) or not _children(guardian[0]):
        assert time.monotonic() < deadline
    os.kill(job.pid, signal.SIGTERM)
    assert job.code() == 143
    assert len(list((tmp_path / "run").glob("rank-*.log"))) == 60
    assert len(list((tmp_path / "run" / "beacons").iterdir())) < 60


def test_ten_thousand_ranks_on_a_cpu_are_refused(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text("")
    done = ascend_run("--device", "cpu", "--nproc", "10000", "--dry-run", "train.py")
    assert done.returncode == 1
    assert re.search(r"10000 ranks on \d+ CPU cores: expected at most \d+ \(4 per core, but at least 8\)", done.stderr)
    assert "--oversubscribe" in done.stderr
    done = ascend_run("--device", "cpu", "--nproc", "1000", "--oversubscribe", "--dry-run", "train.py")
    assert done.returncode == 0


def test_requests_of_one_moment_are_one():
    now = [0.0]
    requests = Requests(lambda: now[0])
    for source in Source:
        requests.to_end(signal.SIGTERM, source)
    now[0] = 0.5
    requests.to_end(signal.SIGHUP, Source.PARENT)  # systemd's SendSIGHUP
    requests.to_end(signal.SIGTERM, Source.GUARDIAN)
    assert (requests.stop, requests.skips_grace) == (signal.SIGTERM, False)
    now[0] = 3.0
    requests.to_end(signal.SIGTERM, Source.PARENT)
    assert requests.skips_grace


@pytest.mark.parametrize(
    ("first", "second", "after", "skips_grace"),
    [
        (signal.SIGINT, signal.SIGINT, 0.01, False),  # timeout(1)
        (signal.SIGINT, signal.SIGINT, 0.3, True),
        (signal.SIGTERM, signal.SIGINT, 0.01, True),
        (signal.SIGTERM, NOT_WAITED_FOR, 0.01, True),
    ],
)
def test_a_second_request_skips_the_grace_period(first, second, after, skips_grace):
    now = [0.0]
    requests = Requests(lambda: now[0])
    requests.to_end(first, Source.PARENT)
    now[0] = after
    requests.to_end(second, Source.PARENT)
    assert (requests.stop, requests.skips_grace) == (first, skips_grace)


def test_a_warning_is_new_after_two_seconds():
    now = [0.0]
    requests = Requests(lambda: now[0])
    assert requests.is_new(signal.SIGUSR1)
    assert requests.is_new(signal.SIGUSR2)
    now[0] = 1.0
    assert not requests.is_new(signal.SIGUSR1)
    now[0] = 2.5
    assert requests.is_new(signal.SIGUSR1)


def test_a_script_sees_sigusr1_as_it_would_without_a_launcher(ascend_run, tmp_path):
    """PyTorch Lightning installs its handler only where it finds SIG_DFL."""
    (tmp_path / "train.py").write_text(
        "import os, signal\nprint(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\nprint('lives')\n"
    )
    assert ascend_run("--device", "cpu", "--no-adapt", "train.py").stdout.split() == ["True", "lives"]
    assert ascend_run("--device", "cpu", "train.py").stdout.split() == ["True", "lives"]


def test_a_program_that_closes_its_descriptors_gets_no_signal_bytes_into_its_files(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: print('handled'))\nos.closerange(3, 200)\n"
        "data = open('data', 'wb')\nos.kill(os.getpid(), signal.SIGUSR1)\n"
    )
    done = ascend_run("--device", "cpu", "--log-dir", "run", "train.py")
    assert (done.returncode, done.stdout) == (0, "handled\n")
    assert (tmp_path / "data").read_bytes() == b""
    (beacon,) = (tmp_path / "run" / "beacons").iterdir()
    assert beacon.read_bytes() == bytes([signal.SIGUSR1])


def _children(pid):
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
