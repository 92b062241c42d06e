"""What CI sees of the mutation run: one patch for each kind of alteration, in a copy of what is installed here."""

from __future__ import annotations

import shutil
from pathlib import Path

import altered_source
import mutations
import pytest
from packaging.version import Version
from upstream_releases import Upstream

from ascend_adapt import probe
from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.testing import release_matrix


def admitted() -> list[object]:
    """Of the patches whose target is installed, in a release that they are for, one for each kind and alteration."""
    kept, seen = [], set()
    for parameters in mutations.patches():
        upstream, one = parameters.values
        version = probe.distribution_version(upstream.distribution)
        required = release_matrix.requirements_on(one.patch, upstream.distribution)
        alterations = {(one.patch.kind, kind) for kind in altered_source.kinds(one.patch)}
        if not version or alterations <= seen:
            continue
        if all(each.specifier.contains(Version(version), prereleases=True) for each in required):
            kept.append(parameters)
            seen |= alterations
    return kept


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SourceTree]:
    """Copies of installed packages by name, each made once."""
    return {}


@pytest.mark.parametrize(("upstream", "one"), admitted())
def test_every_alteration_is_seen(
    upstream: Upstream, one: Registered, copies: dict[str, SourceTree], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if upstream.package not in copies:
        installed = probe.root_folder(upstream.package)
        assert installed is not None
        folder = tmp_path_factory.mktemp("installed")
        shutil.copytree(Path(installed) / upstream.package, folder / upstream.package)
        copies[upstream.package] = SourceTree(folder, installed=True)
    assert mutations.alter(upstream, one, copies[upstream.package]) > 0
