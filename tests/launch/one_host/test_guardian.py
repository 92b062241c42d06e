"""How jobs end: with the right code, whoever dies, and with nothing left behind."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import ClassVar

import pytest

from ascend_adapt.launch.one_host import guardian
from ascend_adapt.launch.one_host.guardian import Assignment, Guardian
from ascend_adapt.launch.one_host.processes import Identity
from ascend_adapt.launch.one_host.run_directory import RunDirectory
from ascend_adapt.launch.one_host.signals import NOT_WAITED_FOR
from ascend_adapt.launch.one_host.termination import GRACE_S

# Says who it is, and has a child in its own session; both stay until they are ended.
LASTING = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
try:
    print(os.environ.get("RANK", "-"), os.getpid(), os.getppid(), child.pid, flush=True)
    signal.pause()
finally:
    print("cleaned", os.environ.get("RANK", "-"), flush=True)
"""


def identities(lines):
    """Return rank, its parent and its child, for each line that LASTING printed."""
    return [tuple(Identity.of(int(word)) for word in line.split()[1:]) for line in lines]


def gone(identity, timeout=30):
    """Wait for the end of a process that is not ours, without looking again and again."""
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return True
    try:
        return not identity.is_alive() or bool(select.select([handle], [], [], timeout)[0])
    finally:
        os.close(handle)


@pytest.fixture
def lasting(background, tmp_path):
    """Return a running job of two ranks, and each rank's identities."""
    (tmp_path / "train.py").write_text(LASTING)

    def start(*options, **kwargs):
        job = background("--nproc", "2", "--log-dir", "run", *options, "train.py", **kwargs)
        return job, identities(job.lines(2))

    return start


def test_run_1_a_rank_that_ignores_sigterm_and_its_child_in_another_session(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, signal, subprocess, sys\n"
        "if os.environ['RANK'] == '0':\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "    print(os.getpid(), child.pid, flush=True)\n"
        "    open('ready', 'w').close()\n"
        "    while True: signal.pause()\n"
        "while not os.path.exists('ready'): pass\n"
        "sys.exit(7)\n"
    )
    job = ascend_run("--nproc", "2", "--grace", "2", "--log-dir", "run", "train.py")
    assert job.returncode == 7, job.stderr
    assert not any(os.path.exists(f"/proc/{pid}") for pid in job.stdout.split())
    assert f"failed first: sys.exit(7) (exit code 7); its log: {tmp_path}/run/rank-1.log" in job.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_everything(number, lasting):
    job, ranks = lasting()
    os.kill(job.pid, number)
    assert job.code() == 128 + number
    assert not any(one.is_alive() for rank in ranks for one in rank)
    if number == signal.SIGINT:
        assert job.lines(2) == ["cleaned 0", "cleaned 1"]


def test_the_launcher_is_killed(lasting):
    job, ranks = lasting()
    os.kill(job.pid, signal.SIGKILL)
    assert job.code() == 128 + signal.SIGKILL
    assert all(gone(one) for rank in ranks for one in rank)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_guardian_is_killed(number, lasting):
    job, ranks = lasting()
    os.kill(ranks[0][1].pid, number)
    assert job.code() == 128 + number
    assert not any(one.is_alive() for rank in ranks for one in rank)


def test_a_rank_is_killed(lasting):
    job, ranks = lasting(stderr=subprocess.PIPE)
    os.kill(ranks[1][0].pid, signal.SIGKILL)
    assert job.code() == 137
    assert not any(one.is_alive() for rank in ranks for one in rank)
    assert "rank 1 on " in (reported := job.process.stderr.read())
    assert "failed first: exit code 137 (SIGKILL)" in reported


def test_a_grandchild_that_is_killed_is_the_scripts_own_matter(lasting):
    job, ranks = lasting()
    os.kill(ranks[0][2].pid, signal.SIGKILL)
    assert gone(ranks[0][2])
    assert job.process.poll() is None
    assert ranks[0][0].is_alive()


def test_what_a_finished_job_left_running_is_ended(ascend_run, tmp_path):
    job = ascend_run("bash", "-c", "setsid sleep 1000 & echo $!")
    assert job.returncode == 0
    assert not os.path.exists(f"/proc/{job.stdout.strip()}")
    assert f"ascend-run: stopping processes that the job left running: {job.stdout.strip()}\n" in job.stderr


def test_a_process_that_ends_after_its_rank_was_not_left_running(ascend_run):
    """As Python's resource tracker does after every multiprocessing.get_context("spawn")."""
    job = ascend_run("bash", "-c", "setsid sleep 0.3 &")
    assert job.returncode == 0
    assert "left running" not in job.stderr


def test_no_process_of_others_is_touched(lasting):
    with subprocess.Popen(["sleep", "1000"]) as foreign:
        job, _ = lasting()
        os.kill(job.pid, signal.SIGTERM)
        job.code()
        assert foreign.poll() is None
        foreign.kill()


def test_a_restart_is_a_new_run_after_everything_of_the_last_one_is_gone(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, subprocess, sys\n"
        "if os.environ['RANK'] == '1' and os.path.exists('child'):\n"
        "    print('left' if os.path.exists('/proc/' + open('child').read()) else 'gone')\n"
        "if os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] != '2':\n"
        "    child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "    open('child', 'w').write(str(child.pid))\n"
        "    sys.exit(3)\n"
        "print(os.environ['TORCHELASTIC_RUN_ID'])\n"
    )
    job = ascend_run("--nproc", "2", "--max-restarts", "2", "--log-dir", "run", "train.py")
    assert job.returncode == 0, job.stderr
    printed = job.stdout.split()
    assert printed.count("gone") == 2
    assert "left" not in printed
    assert {name.rpartition(".")[2] for name in printed if name != "gone"} >= {"2"}
    assert "ascend-run: restart 2 of 2" in job.stderr
    assert json.loads((tmp_path / "run" / "job.json").read_text())["restarts"] == 2


def test_restarts_end_with_the_last_failures_code(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text("import os, sys; sys.exit(4 + int(os.environ['TORCHELASTIC_RESTART_COUNT']))")
    assert ascend_run("--max-restarts", "1", "train.py").returncode == 5


def test_each_rank_has_a_log_and_the_console_gets_whole_lines(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, sys\nfor n in range(200):\n"
        "    for word in ('rank', os.environ['RANK'], 'line', str(n)):\n"
        "        print(word, end=' ', flush=True)\n    print()\n"
        "print('to stderr', file=sys.stderr)\nprint('last', end='')\n"
    )
    job = ascend_run("--nproc", "3", "--log-dir", "run", "train.py")
    wanted = [f"rank {rank} line {n} " for rank in range(3) for n in range(200)]
    assert sorted(job.stdout.replace("last", "").splitlines()) == sorted(wanted)
    assert job.stdout.count("last") == 3
    assert job.stderr.count("to stderr\n") == 3
    for rank in range(3):
        log = (tmp_path / "run" / f"rank-{rank}.log").read_text()
        assert log.replace("to stderr\n", "").splitlines() == [*wanted[rank * 200 : rank * 200 + 200], "last"]


def test_no_rank_cuts_another_ranks_line_in_two(ascend_run, tmp_path):
    for name in ("begun", "between"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "train.py").write_text(
        "import os\n"
        "if os.environ['RANK'] == '0':\n"
        "    print('begin', end=' ', flush=True)\n    open('begun', 'w').close()\n"
        "    open('between').read()\n    print('end')\n"
        "else:\n"
        "    open('begun').read()\n    print('other')\n    open('between', 'w').close()\n"
    )
    # Which of two pipes is read first is left to the kernel.
    assert sorted(ascend_run("--nproc", "2", "train.py").stdout.splitlines()) == ["begin end", "other"]


def test_the_earliest_error_is_shown_even_if_its_rank_ends_later(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text(
        "import atexit, os, signal, sys\n"
        "os.path.exists('pipe') or os.environ['RANK'] == '1' and os.mkfifo('pipe')\n"
        "if os.environ['RANK'] == '1':\n"
        "    def last(): open('pipe', 'w').write('x'); signal.pause()\n"
        "    atexit.register(last)\n"
        "    raise ValueError('the cause\\nin two lines')\n"
        "while not os.path.exists('pipe'): pass\n"
        "open('pipe').read()\n"
        "raise RuntimeError('the consequence')\n"
    )
    job = ascend_run("--nproc", "2", "--log-dir", "run", "train.py")
    assert job.returncode == 1
    (reported,) = [line for line in job.stderr.splitlines() if "failed first" in line]
    assert reported.startswith("ascend-run: rank 1 on ")
    assert "failed first: ValueError: the cause in two lines (exit code 1); its log: " in reported
    assert reported.endswith("/run/rank-1.log")


def test_a_traceback_begins_with_the_script(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text("def f():\n    1 / 0\nf()\n")
    job = ascend_run("train.py")
    assert job.stderr.count("Traceback") == 1
    assert "rank_entry" not in job.stderr
    assert '  File "train.py", line 3, in <module>' in job.stderr


def test_a_console_that_goes_away_stops_no_job(ascend_run, background, tmp_path):
    (tmp_path / "train.py").write_text("for n in range(100000):\n    print('line', n)\nopen('done', 'w').close()")
    job = background("--log-dir", "run", "train.py")
    job.lines(1)
    job.process.stdout.close()
    assert job.code() == 0
    assert (tmp_path / "done").exists()
    assert (tmp_path / "run" / "rank-0.log").read_text().endswith("line 99999\n")
    job.process.stdout = open(os.devnull)  # noqa: SIM115  the fixture closes it


def on_a_terminal(command, cwd):
    """Start a command as the foreground job of its own terminal; return it and the terminal's other end."""
    master, slave = pty.openpty()
    code = "import os, sys, fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command], cwd=cwd, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    return process, master


def read_until(terminal, text):
    """Read what appears on a terminal until ``text`` is there."""
    seen = ""
    while text not in seen:
        seen += os.read(terminal, 4096).decode()
    return seen


def test_run_2_ctrl_c_in_the_foreground(tmp_path):
    (tmp_path / "train.py").write_text("import signal\nprint('ready', flush=True)\nsignal.pause()")
    process, terminal = on_a_terminal([sys.executable, "-m", "ascend_adapt.launch.cli", "train.py"], tmp_path)
    read_until(terminal, "ready")
    os.write(terminal, b"\x03")
    assert process.wait(60) == 130
    os.close(terminal)


def test_run_2_nohup_and_the_terminal_closes(tmp_path):
    for name in ("go", "done"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "train.py").write_text(
        "import signal\nprint('ready', flush=True)\nopen('go').read()\n"
        "open('done', 'w').write(str(signal.getsignal(signal.SIGHUP)))"
    )
    job = f"nohup {sys.executable} -m ascend_adapt.launch.cli --log-dir run train.py"
    shell, terminal = on_a_terminal(["bash", "-ic", f"{job} > out & echo pid $!; sleep 1000"], tmp_path)
    read_until(terminal, "pid ")
    # Opening the pipe for writing returns once the rank opens it for reading: it has begun.
    go = open(tmp_path / "go", "w")  # noqa: SIM115  closed when the terminal is
    os.close(terminal)
    shell.wait(60)
    job = json.loads((tmp_path / "run" / "job.json").read_text())
    # Some shells pass the hangup on to their jobs, some do not.
    for role in ("launcher", "guardian"):
        os.kill(job[role]["pid"], signal.SIGHUP)
    go.close()
    with open(tmp_path / "done") as done:
        assert done.read() == str(signal.SIG_IGN)
    assert gone(Identity(**job["launcher"]))
    assert json.loads((tmp_path / "run" / "job.json").read_text())["exit_code"] == 0


def test_what_a_rank_says_while_it_is_ended_is_not_the_first_error(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, signal, sys\n"
        "def stop(*_): raise RuntimeError('was ended')\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "if os.environ['RANK'] == '0':\n"
        "    open('ready', 'w').close()\n    signal.pause()\n"
        "while not os.path.exists('ready'): pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    job = ascend_run("--nproc", "2", "train.py")
    assert job.returncode == 137
    assert "ascend-run: rank 1 on " in job.stderr
    assert "RuntimeError: was ended" in job.stderr


def test_a_stop_after_a_failure_does_not_change_the_code(background, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, signal, sys\n"
        "if os.environ['RANK'] == '1':\n    sys.stdin.readline(); sys.exit(7)\n"
        "def stop(*_): print('asked', flush=True)\n"
        "signal.signal(signal.SIGTERM, stop)\nprint('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    job = background("--grace", "60", "--nproc", "2", "train.py", stdin=subprocess.PIPE)
    assert job.lines(1) == ["ready"]
    job.process.stdin.write("\n")
    job.process.stdin.close()
    assert job.lines(1) == ["asked"]
    # Ctrl-C twice: the second skips the grace period, which is GRACE_S after a failure, whatever --grace says.
    began = time.monotonic()
    os.kill(job.pid, signal.SIGINT)
    time.sleep(0.5)  # sooner it would count as the same request
    os.kill(job.pid, signal.SIGINT)
    assert job.code() == 7
    assert time.monotonic() - began < GRACE_S / 2


def test_a_program_that_cannot_be_started_is_reported_in_one_line(ascend_run, tmp_path):
    (tmp_path / "broken").write_bytes(b"\x7fnot a program")
    (tmp_path / "broken").chmod(0o755)
    job = ascend_run("./broken")
    assert job.returncode == 1
    assert "ascend-run: ./broken: Exec format error, expected a program that starts" in job.stderr
    assert "Traceback" not in job.stderr


def test_a_clock_that_is_set_back_hides_no_message(ascend_run, tmp_path):
    (tmp_path / "train.py").write_text("import time\ntime.time_ns = lambda: 0\nraise RuntimeError('boom')\n")
    job = ascend_run("train.py")
    assert "failed first: RuntimeError: boom (exit code 1); its log: " in job.stderr


def test_a_limit_that_keeps_a_program_from_starting_is_reported(tmp_path):
    (tmp_path / "train.py").write_text("")
    options = "--device cpu --nproc 4 --oversubscribe"
    job = subprocess.run(
        f'ulimit -n 20; exec "{sys.executable}" -m ascend_adapt.launch.cli {options} train.py',
        shell=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
    )
    assert "Too many open files (this process may have 20; raise the limit, such as with `ulimit -n" in job.stderr
    assert (job.returncode, "first line (#!)" in job.stderr, "Traceback" in job.stderr) == (1, False, False)


def test_a_run_directory_in_use_is_refused(lasting, ascend_run):
    job, ranks = lasting()
    second = ascend_run("--log-dir", "run", "train.py")
    assert second.returncode == 1
    assert f"is in use by a running job (pid {job.pid}) — " in second.stderr
    assert all(one.is_alive() for rank in ranks for one in rank)


DEAF = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print(os.getpid(), flush=True)\n"
    "time.sleep(1000)\n"
)


@pytest.mark.parametrize("more", [(), ("--launcher", "ssh", "-H", "hosts")], ids=["one host", "two"])
def test_the_grace_that_was_asked_for(background, tmp_path, more):
    """Two ranks that ignore SIGTERM: of one second is kept what the default of ten would not."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    (tmp_path / "bin" / "ssh").chmod(0o755)
    (tmp_path / "hosts").write_text("w-1 slots=1\nw-2 slots=1\n")
    (tmp_path / "train.py").write_text(DEAF)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    ranks = () if more else ("--nproc", "2")
    job = background(
        "--device", "cpu", "--grace", "1", *ranks, *more, "--log-dir", "run", "train.py", env={"PATH": path}
    )
    pids = [int(line) for line in job.lines(2)]
    assert json.loads((tmp_path / "run" / "job.json").read_text())["grace"] == 1
    began = time.monotonic()
    os.kill(job.pid, signal.SIGTERM)
    assert job.code() == 143
    assert 1 <= time.monotonic() - began < GRACE_S - 2
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.parametrize(
    ("stop", "grace"),
    [
        (signal.SIGTERM, 60.0),
        (signal.SIGHUP, 60.0),
        (signal.SIGINT, GRACE_S),
        (NOT_WAITED_FOR, GRACE_S),
        (None, GRACE_S),
    ],
)
def test_only_who_asks_by_sigterm_or_sighup_waits_for_a_save(monkeypatch, tmp_path, stop, grace):
    """After a failure, here or on another host, ranks that wait for each other would use up all of it."""
    seen = []

    class Over:
        left: ClassVar = []

        def __init__(self, first, grace, needs):
            seen.append(grace)

        def look(self):
            return True

    monkeypatch.setattr(guardian, "Termination", Over)
    reader, writer = os.pipe()
    work = Guardian(Assignment(SimpleNamespace(ranks=()), RunDirectory(tmp_path), grace=60.0), reader, Identity.own())
    work._requests.stop = stop
    work._end_all(None)
    os.close(reader)
    os.close(writer)
    assert seen == [grace]
