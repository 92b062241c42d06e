"""The launcher's side of a job on a host that can have no more processes."""

from __future__ import annotations

import errno
import os
import resource
import signal

import pytest

from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.one_host import processes, runner


@pytest.mark.parametrize(
    ("limit", "why"), [(3, r"this user may have 3 processes, see `ulimit -u`; "), (resource.RLIM_INFINITY, "")]
)
def test_a_limit_of_processes_is_named(monkeypatch, limit, why):
    """Under `ulimit -u`, the start once ended with a traceback."""

    def refused():
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refused)
    monkeypatch.setattr(processes, "adopt_orphans", lambda: None)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    before, opened = signal.pthread_sigmask(signal.SIG_BLOCK, ()), len(os.listdir("/proc/self/fd"))
    with pytest.raises(
        LaunchError,
        match=rf"^guardian of the job: Resource temporarily unavailable \({why}a container may have fewer, .*\), "
        "expected to start a process — raise the limit",
    ):
        runner.GuardedRun(None)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert len(os.listdir("/proc/self/fd")) == opened
