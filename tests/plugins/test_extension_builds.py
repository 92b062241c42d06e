"""torch's own builder of extensions, killed and waited for in real processes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time

import pytest
from torch.utils.file_baton import FileBaton

import ascend_adapt
from ascend_adapt import build_locks
from ascend_adapt_plugins.deepspeed_runtime import extension_builds

BUILDER = """
import sys, time, ascend_adapt
if sys.argv[2:] != ["plain"]:
    ascend_adapt.enable(device="cpu")
from torch.utils.file_baton import FileBaton
assert FileBaton(sys.argv[1]).try_acquire()
print("builds", flush=True)
time.sleep(60)
"""


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "lock"


@pytest.fixture
def builder(lock):
    """Return a function that starts a process which holds the lock."""
    started = []

    def start(*options):
        process = subprocess.Popen([sys.executable, "-c", BUILDER, str(lock), *options], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"builds\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_lock_of_a_killed_build_is_taken_over_and_that_of_a_living_one_is_not(lock, builder):
    baton = FileBaton(str(lock))
    with ascend_adapt.enabled(device="cpu"):
        process = builder()
        assert baton.try_acquire() is False
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert baton.try_acquire() is True
        assert not build_locks.is_left_behind(lock)  # now it is ours
        baton.release()
    assert not lock.exists()


def test_a_lock_without_a_record_is_judged_by_its_holder_and_its_silence(lock, builder):
    baton = FileBaton(str(lock))
    with ascend_adapt.enabled(device="cpu"):
        process = builder("plain")
        os.utime(lock, (0, 0))
        assert baton.try_acquire() is False
        process.kill()
        process.wait()
        os.utime(lock)
        assert baton.try_acquire() is False  # another host may be compiling
        os.utime(lock, (0, 0))
        assert baton.try_acquire() is True
        baton.release()


def test_a_wait_ends_when_the_builder_is_killed_and_says_what_it_waits_for(lock, builder, monkeypatch, caplog):
    monkeypatch.setattr(extension_builds, "_REPORT_EVERY_S", 0.2)
    process = builder()

    class Killer(logging.Handler):
        """Kills the builder once the wait is reported, however slow this machine is."""

        def emit(self, record):
            process.kill()

    monkeypatch.setattr(logging.getLogger("ascend_adapt"), "handlers", [Killer()])
    began_s = time.monotonic()
    with (
        caplog.at_level(logging.WARNING, "ascend_adapt"),
        ascend_adapt.enabled(device="cpu"),
        pytest.raises(RuntimeError, match=r"lock: the compiling process has ended .* start the job again"),
    ):
        FileBaton(str(lock)).wait()
    assert time.monotonic() - began_s < 20
    assert f"s so far for the build that holds {lock}" in caplog.text


def test_a_build_is_announced_once(tmp_path, monkeypatch, caplog):
    from torch.utils import cpp_extension

    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")  # ninja is there
    (tmp_path / "tiny.cpp").write_text("int tiny() { return 1; }\n")
    (tmp_path / "build").mkdir()

    def load():
        with caplog.at_level(logging.WARNING, "ascend_adapt"), ascend_adapt.enabled(device="cpu"):
            cpp_extension.load(
                "tiny", [str(tmp_path / "tiny.cpp")], build_directory=str(tmp_path / "build"), is_python_module=False
            )

    load()
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith(
        f"ascend_adapt: compiling the extension tiny (1 source files) in {tmp_path / 'build'}, once: "
    )
    assert last.startswith("ascend_adapt: extension tiny is ready after ")
    assert not (tmp_path / "build" / "lock").exists()
    caplog.clear()
    load()
    assert caplog.records == []
