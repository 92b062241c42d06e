"""Declarations: every patch is complete, and consistent with its upstream source."""

from __future__ import annotations

import pytest

from ascend_adapt.errors import PatchDrift
from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.patches.declare.terms import CONSEQUENCES
from ascend_adapt.patches.judge import static
from ascend_adapt.testing import release_matrix, upstream_facts, versions
from ascend_adapt.testing.command_line import Selection, is_of, require


def test_it_says_everything(one: Registered) -> None:
    """A patch has why, until and without, a version range that is not empty, and a name that --disable accepts."""
    patch = one.patch
    require(bool(patch.why.strip() and patch.until.strip()), f"why is {patch.why!r}, until is {patch.until!r}")
    require(patch.without in CONSEQUENCES, f"without is {patch.without!r}")
    require(bool(one.name) and "," not in one.name, f"its name is {one.name!r}")
    for requirement in patch.requires:
        versions.around(requirement)


def test_it_judges_the_source_tree(one: Registered, selection: Selection) -> None:
    """On --upstream DIR, a patch does not drift inside its range, and is admitted exactly if the fault is present."""
    if selection.upstream is None:
        pytest.skip("no --upstream DIR was given")
    if not is_of(one, selection.upstream):
        pytest.skip(f"{selection.upstream.root} contains neither {one.patch.target.root} nor a required package")
    outcome = selection.verdict(one, selection.upstream)
    require(outcome.state in ("armed", "skipped", "not_needed"), f"is {outcome.state}: {outcome.reason}")
    own = [each for each in one.patch.requires if outcome.found.startswith(f"{each.name} ")]
    if not own or selection.upstream.folder(one.patch.target.root) is None:
        return
    version = selection.upstream.version(own[0].name, one.patch.target).text
    try:
        static.definitions(one.patch, selection.upstream)
    except PatchDrift:
        return
    if version is not None:
        facts = upstream_facts.gather(one.patch, selection.upstream)
        row = release_matrix.judge(one, own[0].name, version, facts)
        require(not row.problem, f"{row}: {row.problem}")
