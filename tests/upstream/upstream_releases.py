"""Which releases of which distributions every patch is judged on, and where their sources are."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.runtime.plugin_manager import PluginManager
from ascend_adapt.testing import release_matrix, upstream_facts
from ascend_adapt.testing.releases import Releases

ROOT = Path(__file__).parents[2]
RELEASES = Releases(ROOT / ".releases")


@dataclass(frozen=True)
class Upstream:
    """The releases of one distribution from ``first`` on; pre-releases are left out.

    ``newest_of_minor``: of each minor release only the newest, for large archives in many releases.
    """

    distribution: str
    first: str
    newest_of_minor: bool = False

    @property
    def package(self) -> str:
        """The top-level package of the distribution."""
        return self.distribution.partition("-")[0]

    @property
    def record(self) -> Path:
        """The file of the recorded facts."""
        return Path(__file__).parent / f"{self.distribution}.json"

    def releases(self) -> list[str]:
        """Return all of them as the index has them now, oldest first."""
        known = (Version(text) for text in RELEASES.versions(self.distribution))
        wanted = SpecifierSet(f">={self.first}")
        found = [version for version in sorted(known) if version in wanted and not version.is_prerelease]
        if self.newest_of_minor:
            found = list({version.release[:2]: version for version in found}.values())
        return [str(version) for version in found]

    def tree(self, release: str) -> SourceTree:
        """Return the sources of a release, downloaded if they are not here."""
        folder = RELEASES.tree(self.distribution, release)
        return SourceTree(folder / "src" if (folder / "src").is_dir() else folder)

    @functools.cache  # noqa: B019  of the few in UPSTREAMS
    def patches(self) -> list[Registered]:
        """Return the patches of the plugins of this project that its releases decide about."""
        ours = [one for one in PluginManager().patches() if one.distribution == "ascend_adapt"]
        return [one for one in ours if release_matrix.concerns(one, self.distribution)]

    def rows(self, record: upstream_facts.UpstreamRecord, release: str) -> list[release_matrix.ReleaseRow]:
        """Return every patch judged on what the record holds of a release."""
        facts = [(one, record.of(one, release)) for one in self.patches()]
        return [release_matrix.judge(one, self.distribution, release, reported) for one, reported in facts]


UPSTREAMS = (
    Upstream("deepspeed", first="0.6.0"),
    Upstream("megatron-core", first="0.12.0"),
    Upstream("transformers", first="4.37.0", newest_of_minor=True),
    Upstream("accelerate", first="0.27.0", newest_of_minor=True),
)
