"""The DeepSpeed plugin judged on the sources of real releases, around the ends of its version ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_adapt import hosts
from ascend_adapt.patches import static
from ascend_adapt.patches.installation import SourceTree
from ascend_adapt.patches.syntax import Found, occurrences, parse_fragment
from ascend_adapt.plugin_manager import PluginManager
from ascend_adapt.testing.releases import Releases
from ascend_adapt_plugins.deepspeed_runtime import pipeline

RELEASES = Releases(Path(__file__).parents[2] / ".releases")
VERSIONS = ("0.6.0", "0.6.3", "0.8.1", "0.8.3", "0.9.0", "0.10.1", "0.11.1", "0.11.2", "0.14.1", "0.14.4", "0.19.8")


def tree(version: str) -> SourceTree:
    return SourceTree(RELEASES.tree("deepspeed", version))


@pytest.fixture(scope="module")
def patches():
    return [one for one in PluginManager().patches() if one.plugin == "deepspeed"]


@pytest.mark.parametrize("device", ["cpu", "npu", "cuda"])
@pytest.mark.parametrize("version", VERSIONS)
def test_no_patch_has_drifted(version, device, patches):
    """In its range a patch finds its target; outside it is skipped; it never guesses."""
    outcomes = static.judge(patches, device=device, hosts=hosts.KNOWN, tree=tree(version))
    assert {outcome.state for outcome in outcomes} <= {"armed", "skipped", "not_needed"}, outcomes
    for outcome in outcomes:
        if outcome.found:
            assert outcome.found.startswith(f"deepspeed {version}")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_lost_gradient_is_there_exactly_where_it_is_patched(version, patches):
    """Case patch-6: once up to 0.11.1, whatever its line breaks, and nowhere from 0.11.2 on."""
    (found,) = static.definitions(pipeline.keep_missing_grads, tree(version))
    assert isinstance(found, Found)
    times = len(occurrences(found.node, parse_fragment(pipeline.keep_missing_grads.old, "old")))
    is_old = tuple(map(int, version.split("."))) < (0, 11, 2)
    assert times == (1 if is_old else 0)
    outcomes = static.judge(patches, device="cpu", hosts=hosts.KNOWN, tree=tree(version))
    (state,) = [outcome.state for outcome in outcomes if outcome.patch == "keep_missing_grads"]
    assert state == ("armed" if is_old else "skipped")
