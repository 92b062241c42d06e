"""SIGTERM during a run: it is noted, and child processes survive it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading

import pytest
import yaml

from ascend_adapt.config.yaml_file import to_dict
from ascend_adapt.native.__main__ import main
from ascend_adapt.native.metrics.run_log import RunLog
from ascend_adapt.native.signals import SignalHandler


@pytest.fixture
def handler():
    """This process's own handler, of which the number of calls is kept."""
    came = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append(1))
    yield came
    signal.signal(signal.SIGTERM, before)


def test_it_is_noted_and_only_while_entered(handler):
    with SignalHandler() as interruption:
        assert not interruption.asked_to_stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.asked_to_stop
    assert interruption.asked_to_stop
    assert handler == []
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    os.kill(os.getpid(), signal.SIGTERM)
    assert handler == [1]


def test_one_that_another_thread_is_given_is_noted(handler):
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    with SignalHandler() as interruption:
        signal.pthread_kill(thread.ident, signal.SIGTERM)
        end.set()
        thread.join()
        assert interruption.asked_to_stop
    assert handler == []


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_one_request_to_save_is_answered_once(name):
    with SignalHandler() as interruption:
        os.kill(os.getpid(), signal.Signals[name])
        assert (interruption.asked_to_save, interruption.asked_to_stop) == (True, False)
        interruption.forget_save_requests()
        os.kill(os.getpid(), signal.Signals[name])  # the same, which another rank had already asked for
        assert not interruption.asked_to_save


def test_the_end_may_be_asked_for_by_another_signal():
    with SignalHandler(["SIGUSR2"]) as interruption:
        os.kill(os.getpid(), signal.SIGUSR2)
        assert (interruption.asked_to_save, interruption.asked_to_stop) == (False, True)


def test_what_is_started_meanwhile_does_its_work(handler):
    """Like a compiler, which gets the signal of the launcher as every process of the job does."""
    with SignalHandler(), subprocess.Popen(["sleep", "0.3"]) as compiler:
        compiler.terminate()
        assert compiler.wait() == 0
    with subprocess.Popen(["sleep", "60"]) as other:
        other.terminate()
        assert other.wait() == -signal.SIGTERM


def test_in_another_thread_it_does_nothing(handler):
    asked = []

    def run():
        with SignalHandler() as interruption:
            asked.append(interruption.asked_to_stop)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert asked == [False]
    os.kill(os.getpid(), signal.SIGTERM)
    assert handler == [1]


@pytest.mark.parametrize("debug", ["", "0", "1"])
def test_an_interrupted_run_reports_it_in_one_line(settings, tmp_path, monkeypatch, capsys, debug):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(settings)))
    monkeypatch.setattr(RunLog, "step", lambda *_: signal.raise_signal(signal.SIGINT))
    environ = {"ASCEND_ADAPT_RUN_DIR": str(tmp_path), "RANK": "0", "ASCEND_ADAPT_DEBUG": debug}
    with pytest.raises(KeyboardInterrupt if debug == "1" else SystemExit) as ended:
        main([str(tmp_path / "config.yaml")], environ)
    if debug != "1":
        assert ended.value.code == 130
        reported = "ascend_adapt: rank 0: interrupted by SIGINT, which saves no checkpoint; SIGTERM saves one\n"
        assert capsys.readouterr().err == reported
