from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ascend_adapt.launch.one_host import processes
from ascend_adapt.launch.one_host.processes import Identity


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_a_process_is_known_by_pid_and_start(sleeper):
    one = Identity.of(sleeper.pid)
    later = Identity(one.pid, one.start + 1)
    assert (one.is_alive(), later.is_alive()) == (True, False)
    later.send(signal.SIGKILL)
    assert sleeper.poll() is None
    one.send(signal.SIGKILL)
    assert sleeper.wait(60) == -signal.SIGKILL
    assert Identity.of(one.pid) is None
    one.send(signal.SIGKILL)


def test_without_pidfd_the_start_is_looked_at(sleeper, monkeypatch):
    def missing(pid):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    one = Identity.of(sleeper.pid)
    Identity(one.pid, one.start + 1).send(signal.SIGKILL)
    assert sleeper.poll() is None
    one.send(signal.SIGKILL)
    assert sleeper.wait(60) == -signal.SIGKILL


def test_a_zombie_is_not_alive(sleeper):
    one = Identity.of(sleeper.pid)
    sleeper.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not one.is_alive()
    assert one not in processes.descendants(os.getpid())


def test_descendants_whatever_their_session_and_name():
    code = (
        "import subprocess, sys\n"
        "open('/proc/self/comm', 'w').write('a) b (c')\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print(child.pid, flush=True)\nsys.stdin.read()\nchild.kill()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as parent:
        child = int(parent.stdout.readline())
        assert {one.pid for one in processes.descendants(os.getpid())} >= {parent.pid, child}
        assert [one.pid for one in processes.descendants(parent.pid)] == [child]


def test_a_child_dies_with_its_parent():
    """Even one whose parent was gone before the child could ask for it."""
    code = (
        "import os, subprocess, sys\nfrom ascend_adapt.launch.one_host import processes\n"
        "child = subprocess.Popen(['sleep', '1000'], preexec_fn=processes.dies_with_parent())\n"
        "print(child.pid, flush=True)\nsys.stdin.read()\nos._exit(0)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as parent:
        handle = os.pidfd_open(int(parent.stdout.readline()))
        parent.stdin.close()
        import select

        assert select.select([handle], [], [], 60)[0]
        os.close(handle)


@pytest.mark.parametrize(("status", "code"), [(0, 0), (7 << 8, 7), (9, 137), (15, 143)])
def test_exit_codes_are_a_shells(status, code):
    assert processes.exit_code(status) == code


@pytest.mark.parametrize(
    ("code", "name"),
    [(7, "exit code 7"), (137, "exit code 137 (SIGKILL)"), (128, "exit code 128"), (255, "exit code 255")],
)
def test_the_name_of_a_code(code, name):
    assert processes.code_name(code) == name
