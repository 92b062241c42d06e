from __future__ import annotations

import pytest

from ascend_adapt.patches.declare.outcome import Outcome, Status


def outcome(patch: str, plugin: str, state: str, reason: str = "") -> Outcome:
    return Outcome(patch, plugin, "m:f", state, reason, "", "", reversible=True)


STATUS = Status((outcome("one", "p", "applied"), outcome("two", "q", "skipped", "no m")), problems=("plugin r: gone",))


def test_a_status_prints_a_line_a_patch() -> None:
    assert str(STATUS) == "p.one: applied\nq.two: skipped (no m)\nplugin r: gone"
    assert str(Status()) == "no patches"


def test_a_status_is_iterated_and_asked_by_name() -> None:
    assert [one.patch for one in STATUS] == ["one", "two"]
    assert STATUS["two"] is STATUS["q.two"] is STATUS.outcomes[1]
    with pytest.raises(KeyError):
        STATUS["three"]


def test_the_summary_counts_states_in_their_order() -> None:
    assert STATUS.summary() == "1 applied, 1 skipped"
    assert Status().summary() == "no patches"
