"""Tests patches on installed targets, and guards that each patch was applied somewhere."""

from __future__ import annotations

import pytest

from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.testing import seen, stand_in
from ascend_adapt.testing.command_line import Selection, require
from ascend_adapt.testing.stage import FAILED, NOT_SHOWN


def test_on_the_installed_target(one: Registered, selection: Selection) -> None:
    """As static judgement predicts, the patch is applied before and after the import, and undone exactly."""
    outcome = selection.verdict(one)
    selection.why_not_real[one.full_name] = outcome.reason
    require(outcome.state in ("armed", "skipped", "not_needed"), f"is {outcome.state}: {outcome.reason}")
    if not selection.is_on_real_target(one, outcome):
        pytest.skip(f"{outcome.state}: {outcome.reason}")
    result, text = selection.on_real_target(one)
    selection.why_not_real[one.full_name] = text
    if result == NOT_SHOWN:
        pytest.skip(text)
    require(result != FAILED, text)
    selection.applied[one.full_name] = "a real target"
    selection.records.append(seen.record(one, selection.tier, selection.soc))


def test_every_patch_reached_applied(one: Registered, selection: Selection, request: pytest.FixtureRequest) -> None:
    """Guard against an empty run: each patch was applied on its real target or on a stand-in."""
    asked = {item.name.partition("[")[0] for item in request.session.items}
    if not {"test_on_a_stand_in", "test_on_the_installed_target"} <= asked:
        pytest.skip("only some tests of this suite were selected")
    if one.patch.kind == "provide" and selection.verdict(one).state == "not_needed":
        pytest.skip(selection.verdict(one).reason)  # a real module takes precedence
    if one.full_name not in selection.applied and one.patch.hosts and stand_in.is_needed_by_python(one.patch):
        pytest.skip(f"no stand-in may replace {one.patch.target.root}, and none of its code bases is installed")
    require(
        one.full_name in selection.applied, "the patch was never applied — install its target, or pass --upstream DIR"
    )
