"""Tests patches on stand-ins, which are generated from declarations without an installed target."""

from __future__ import annotations

import pytest

from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.testing.command_line import Selection, require
from ascend_adapt.testing.stage import FAILED, NOT_SHOWN, PASSED

# Scenarios that pass only if the patch was applied.
_APPLIES = ("gate: inside", "script: rewritten before it runs")


def test_on_a_stand_in(one: Registered, topic: str, selection: Selection) -> None:
    """Run every scenario of the topic in a fresh process."""
    results = selection.on_stand_in(one, topic)
    failed = [f"{text}: {message}" for text, (result, message) in results.items() if result == FAILED]
    hidden = [message for result, message in results.values() if result == NOT_SHOWN]
    for reason in dict.fromkeys(hidden):
        count = f"{hidden.count(reason)} of {len(results)} scenarios"
        selection.not_shown.append(f"{one.full_name}, {topic}, {count}: {reason}")
    require(bool(results), "no scenario ran")
    require(not failed, "\n".join(failed))
    if len(hidden) == len(results):
        pytest.skip(hidden[0])
    if any(results.get(name, ("",))[0] == PASSED for name in _APPLIES):
        selection.applied.setdefault(one.full_name, "a stand-in")
