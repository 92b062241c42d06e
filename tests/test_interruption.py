"""Signals end a command of `ascend-adapt` in one way, with the shell's exit code and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ascend_adapt import interruption

WAITING = """
import sys, time
from ascend_adapt import cli
def wait(known):
    try:
        print("began", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)
    return 0
cli._kernels = wait
sys.exit(cli.main(["kernels"]))
"""
STARTING = """
import sys
from ascend_adapt import interruption
with interruption.as_exception():
    interruption.run([sys.executable, "-c", '''
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("ended in order", flush=True)))
print("began", flush=True)
time.sleep(60)
'''])
"""


@pytest.fixture
def handlers():
    """The handlers of this process, which return after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_command_cleans_up_and_has_the_shells_exit_code(number, code):
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout.readline() == "began\n"
        process.send_signal(number)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (code, "cleaned up\n")
    assert errors == "ascend-adapt kernels: interrupted — nothing was changed, run it again\n"


def test_an_interrupted_rank_leaves_the_report_to_the_command_that_started_it():
    of_a_rank = f"import os\nos.environ.update(RANK='1', ASCEND_ADAPT_RANK_PID=str(os.getpid()))\n{WAITING}"
    with subprocess.Popen([sys.executable, "-c", of_a_rank], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout.readline() == "began\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("cleaned up\n", "")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_what_announces_the_end_of_a_job_does_not_end_a_command(number):
    with subprocess.Popen([sys.executable, "-c", WAITING.replace("60", "0.5")], stdout=-1, text=True) as process:
        assert process.stdout.readline() == "began\n"
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "cleaned up\n")


def test_an_ignored_signal_stays_ignored():
    command = ["sh", "-c", 'trap "" HUP; exec "$0" -c "$1"', sys.executable, WAITING.replace("60", "0.3")]
    with subprocess.Popen(command, stdout=-1, text=True) as process:
        assert process.stdout.readline() == "began\n"
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_process_that_the_command_started_ends_first():
    with subprocess.Popen([sys.executable, "-c", STARTING], stdout=-1, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline() == "began\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "ended in order\n"


def test_ctrl_c_reaches_such_a_process_once():
    """A terminal signals every process of its foreground group."""
    both = "signal.signal(signal.SIGINT, lambda *_: print('interrupted', flush=True))\nprint("
    counting = STARTING.replace('print("began', f'{both}"began')
    with subprocess.Popen(
        [sys.executable, "-c", counting], stdout=-1, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "began\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "ended in order\n"


def test_a_process_that_has_ended_already_is_no_error(handlers):
    """A scheduler signals every process of a job."""
    with interruption.as_exception(), pytest.raises(interruption.Interrupted):
        interruption.run(["sh", "-c", "sleep 0.3; kill -TERM $PPID"])


def test_the_handlers_of_the_caller_return(handlers):
    with interruption.as_exception():
        assert signal.getsignal(signal.SIGTERM) is not handlers[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in handlers} == handlers


def test_a_swallowed_interruption_can_be_repeated(handlers, monkeypatch):
    monkeypatch.setattr(interruption, "_CLEANING_S", 0.0)
    raised = 0
    with interruption.as_exception():
        for _ in range(2):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except interruption.Interrupted:
                raised += 1
    assert raised == 2
