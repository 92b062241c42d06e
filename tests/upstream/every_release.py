"""Every release's real archive: what it holds is what is recorded, and the engine's own verdict is the row's.

Part of `make conformance`, and not of `make test`, whose names begin with ``test_``: the archives are 570 MB.
"""

from __future__ import annotations

import pytest
from upstream_releases import UPSTREAMS, Upstream

from ascend_adapt.testing import release_matrix, upstream_facts
from ascend_adapt.testing.releases import ReleaseUnreachable


def recorded() -> list[object]:
    return [
        pytest.param(upstream, release, id=f"{upstream.distribution}-{release}")
        for upstream in UPSTREAMS
        for release in upstream_facts.load(upstream.record).releases
    ]


@pytest.mark.parametrize(("upstream", "release"), recorded())
def test_release(upstream: Upstream, release: str) -> None:
    record = upstream_facts.load(upstream.record)
    try:
        tree = upstream.tree(release)
    except ReleaseUnreachable as error:
        pytest.skip(f"not checked: {error}")
    patches = upstream.patches()
    rows = [
        release_matrix.judge(one, upstream.distribution, release, upstream_facts.gather(one.patch, tree))
        for one in patches
    ]
    assert [f"{row}: {row.problem}" for row in rows if row.problem] == []
    assert rows == upstream.rows(record, release)
    assert release_matrix.disagreements(rows, patches, upstream.distribution, tree) == []


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda upstream: upstream.distribution)
def test_the_record_has_every_release_of_the_index(upstream: Upstream) -> None:
    try:
        listed = upstream.releases()
    except ReleaseUnreachable as error:
        pytest.skip(f"not checked: {error}")
    assert list(upstream_facts.load(upstream.record).releases) == listed, "make record-upstreams"
