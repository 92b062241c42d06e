"""What the checkouts of code bases that are no distributions hold of each patch's target: recorded like releases."""

from __future__ import annotations

from pathlib import Path

from code_bases import CODE_BASES, CodeBase

from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.runtime import code_bases
from ascend_adapt.runtime.plugin_manager import PluginManager
from ascend_adapt.testing import upstream_facts
from ascend_adapt.testing.upstream_facts import UpstreamRecord

HERE = Path(__file__).parent
# By folder, the host that a checkout there is.
HOSTS = {
    "Megatron-DeepSpeed": "megatron-deepspeed",
    "bigscience-Megatron-DeepSpeed": "bigscience-megatron-deepspeed",
    "gpt-neox": "gpt-neox",
    "GLM": "glm",
}
KNOWN = tuple(one for one in CODE_BASES if one.folder in HOSTS)


def path_of(one: CodeBase) -> Path:
    """Return the file of a code base's record."""
    return HERE / f"{one.folder}.json"


def patches_of(one: CodeBase) -> list[Registered]:
    """Return this project's patches of functions and classes that lie in a code base."""
    host = HOSTS[one.folder]
    ours = [each for each in PluginManager().patches() if each.distribution == "ascend_adapt"]
    mine = [each for each in ours if host in map(str, each.patch.hosts) and each.patch.kind != "provide"]
    return [each for each in mine if each.patch.target.root in code_bases.KNOWN[host].roots]


def record(one: CodeBase, checkout: Path) -> UpstreamRecord:
    """Return what a checkout holds."""
    return upstream_facts.record(one.folder, patches_of(one), {one.commit: SourceTree(checkout)})
