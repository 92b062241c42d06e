"""The engine on stand-ins for each patch's target: what can be told from the declaration, with nothing installed."""

from __future__ import annotations

import pytest

from ascend_adapt.patches.spec import Registered
from ascend_adapt.testing.command_line import Selection, full_name
from ascend_adapt.testing.scene import check
from ascend_adapt.testing.stage import FAILED, NOT_SHOWN, PASSED


def test_on_a_stand_in(one: Registered, topic: str, selection: Selection) -> None:
    """Every scenario of the topic, each in a fresh process."""
    results = selection.on_stand_in(one, topic)
    failed = [f"{text}: {told}" for text, (result, told) in results.items() if result == FAILED]
    hidden = [f"{text}: {told}" for text, (result, told) in results.items() if result == NOT_SHOWN]
    selection.not_shown += [f"{full_name(one)}, {text}" for text in hidden]
    check(bool(results), "no scenario ran")
    check(not failed, "\n".join(failed))
    if len(hidden) == len(results):
        pytest.skip(hidden[0])
    if topic in ("orders", "script") and any(result == PASSED for result, _ in results.values()):
        selection.applied.setdefault(full_name(one), "a stand-in")
