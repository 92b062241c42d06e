from __future__ import annotations

import signal

import pytest

from ascend_adapt.launch.one_host import processes, termination
from ascend_adapt.launch.one_host.termination import GRACE_S, Termination, steps


class StandIn:
    """A process that ends on one signal only."""

    def __init__(self, ends_on):
        self.ends_on, self.pid, self.got = ends_on, 4711, []

    def ignores(self, number):
        return False

    def send(self, number):
        if number != signal.SIGCONT:
            self.got.append(number)


@pytest.fixture
def job(monkeypatch):
    """Return a clock that is set by hand, and a function that says who is there."""
    clock, there = [0.0], []
    monkeypatch.setattr(processes, "descendants", lambda of: [one for one in there if one.ends_on not in one.got])
    return clock, there


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_process_that_ends_at_the_first_signal_gets_no_other(first, job):
    clock, there = job
    asked = signal.SIGINT if first == signal.SIGINT else signal.SIGTERM
    there.append(one := StandIn(asked))
    work = Termination(first, now=lambda: clock[0])
    assert (work.look(), work.look()) == (False, True)
    assert one.got == [asked]


def test_each_step_is_taken_once_and_late_comers_get_the_one_that_is_due(job):
    clock, there = job
    there.append(old := StandIn(signal.SIGKILL))
    work = Termination(signal.SIGINT, now=lambda: clock[0])
    work.look()
    work.look()
    clock[0] = GRACE_S * 3 / 4
    there.append(young := StandIn(signal.SIGKILL))
    work.look()
    clock[0] = GRACE_S
    assert not work.look()
    assert work.look()
    assert old.got == [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
    assert young.got == [signal.SIGTERM, signal.SIGKILL]


def test_the_grace_period_can_be_skipped(job):
    clock, there = job
    there.append(one := StandIn(signal.SIGKILL))
    work = Termination(signal.SIGTERM, now=lambda: clock[0])
    work.look()
    work.skip_grace()
    assert not work.look()
    assert work.look()
    assert one.got == [signal.SIGTERM, signal.SIGKILL]


def test_what_outlives_sigkill_is_given_up_and_named(job):
    clock, there = job
    there.append(one := StandIn(None))
    work = Termination(signal.SIGTERM, now=lambda: clock[0])
    work.look()
    clock[0] = GRACE_S + 1
    assert not work.look()
    clock[0] = GRACE_S + termination._KILL_WAIT_S + 1
    assert work.look()
    assert work.left == [one]


def test_the_grace_is_ten_seconds():
    assert steps(signal.SIGTERM) == [(0.0, signal.SIGTERM), (10.0, signal.SIGKILL)]


def test_a_longer_grace_moves_the_last_signals_only():
    assert steps(signal.SIGTERM, 60.0) == [(0.0, signal.SIGTERM), (60.0, signal.SIGKILL)]
    assert steps(signal.SIGINT, 60.0) == [(0.0, signal.SIGINT), (45.0, signal.SIGTERM), (60.0, signal.SIGKILL)]
