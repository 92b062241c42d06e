"""The mutation run: real targets altered in every way a patch's kind promises to notice; each must be reported.

Part of `make conformance`. First in copied source trees, for the oldest and the newest release that each patch is for;
then for real, where the altered module is imported with the patches enabled before and after.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import altered_source
import pytest
from imported_mutations import INHERITED
from upstream_releases import ROOT, UPSTREAMS, Upstream

from ascend_adapt import probe
from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.testing import release_matrix, upstream_facts
from ascend_adapt.testing.releases import ReleaseUnreachable

REPORTED: dict[str, int] = {"static": 0, "imported": 0}
# What a mapping holds is known when it is imported.
NOT_IN_THE_SOURCE = {"no mapping", "no such key", "somebody's function"}


def patches() -> list[object]:
    """The patches whose target is of the distribution itself; those of others are altered on their stand-ins."""
    return [
        pytest.param(upstream, one, id=one.full_name)
        for upstream in UPSTREAMS
        for one in upstream.patches()
        if one.patch.target.root == upstream.package and one.patch.kind != "provide"
    ]


@pytest.fixture(scope="session")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SourceTree]:
    """Copied source trees by release, each made once."""
    return {"": SourceTree(tmp_path_factory.mktemp("copies"))}


def copied(upstream: Upstream, release: str, copies: dict[str, SourceTree]) -> SourceTree:
    name = f"{upstream.distribution}-{release}"
    if name not in copies:
        try:
            source = upstream.tree(release)
        except ReleaseUnreachable as error:
            pytest.skip(f"not checked: {error}")
        folder = copies[""].root / name
        shutil.copytree(source.root, folder, symlinks=True, ignore=shutil.ignore_patterns("csrc", "tests", "docs"))
        copies[name] = SourceTree(folder)
    return copies[name]


@pytest.mark.parametrize(("upstream", "one"), patches())
def test_every_alteration_is_seen_in_the_source(
    upstream: Upstream, one: Registered, copies: dict[str, SourceTree]
) -> None:
    record = upstream_facts.load(upstream.record)
    rows = [row for release in record.releases for row in upstream.rows(record, release)]
    own = [row.release for row in rows if row.patch == one.full_name and row.decision == "patch"]
    for release in dict.fromkeys((own[0], own[-1])):
        REPORTED["static"] += alter(upstream, one, copied(upstream, release, copies))


def alter(upstream: Upstream, one: Registered, tree: SourceTree) -> int:
    """Alter the target of a patch in ``tree`` in every way, expect each to be seen, and return how many there were."""
    kinds = [kind for kind in altered_source.kinds(one.patch) if kind not in NOT_IN_THE_SOURCE]
    assert kinds
    for kind in kinds:
        altered = altered_source.altered(one.patch, kind, tree)
        before = {path: path.read_bytes() for path in altered}
        try:
            for path, text in altered.items():
                path.unlink() if text is None else path.write_text(text)
            outcome = release_matrix.judge_source(one, upstream.distribution, tree)
        finally:
            for path, content in before.items():
                path.write_bytes(content)
        assert outcome.state == "drifted", f"{tree.root}, {kind}: {outcome.state} ({outcome.reason})"
    outcome = release_matrix.judge_source(one, upstream.distribution, tree)
    assert outcome.state == "armed", f"{tree.root}, unaltered: {outcome.state} ({outcome.reason})"
    return len(kinds)


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda upstream: upstream.distribution)
def test_every_alteration_is_seen_when_it_is_imported(upstream: Upstream, tmp_path: Path) -> None:
    if probe.root_folder(upstream.package) is None:
        pytest.skip(f"{upstream.package} is not installed: altered in its copied sources only")
    command = [sys.executable, str(ROOT / "tests" / "upstream" / "imported_mutations.py"), upstream.distribution]
    job = subprocess.run(command, capture_output=True, text=True, timeout=540, cwd=tmp_path)
    assert job.returncode == 0, job.stderr[-3000:]
    results = json.loads(job.stdout.rpartition("\n")[2])
    assert results
    assert {name: state for name, state in results.items() if state not in ("drifted", INHERITED)} == {}
    REPORTED["imported"] += list(results.values()).count("drifted")
