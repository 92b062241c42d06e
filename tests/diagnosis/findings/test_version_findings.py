"""Versions that do not go together, and which of them a patch fixes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_adapt.diagnosis import findings
from ascend_adapt.diagnosis.findings import versions
from ascend_adapt.patches.judge import gate
from ascend_adapt.patches.judge.installation import Version
from ascend_adapt.runtime.plugin_manager import PluginManager
from ascend_adapt.testing import upstream_facts
from ascend_adapt.testing.release_matrix import hosts_for
from ascend_adapt.testing.versions import around

RELEASES = {
    name: upstream_facts.load(Path(__file__).parents[2] / "upstream" / f"{name}.json").releases
    for name in ("accelerate", "deepspeed", "megatron-core", "transformers")
}
PATCHES = [one for one in PluginManager().patches() if one.patch.requires]


class Installed:
    """Stand-in for site-packages: versions by distribution, and no files."""

    gains_paths = False

    def __init__(self, installed):
        self.installed = installed

    def version(self, name, target, of_hosts=()):
        return Version(self.installed.get(name))

    def folder(self, module):
        return None


def foretold(one, device, installed):
    """What would become of a patch by its versions alone, as far as the code bases that ask for it are imported."""
    alone = replace(one.patch, hosts=())
    verdict = gate.judge(alone, device, hosts_for(one.patch), Installed(installed))
    return one.outcome("armed" if verdict.admits else "skipped", verdict.reason, verdict.found)


def installations_for(one):
    """Every recorded release of what a patch requires, with versions that it admits of what else it requires."""
    for name in RELEASES.keys() & {requirement.name for requirement in one.patch.requires}:
        others = {other.name: around(other).inside for other in one.patch.requires if other.name != name}
        for release in RELEASES[name]:
            yield {"torch": "2.13.0", **others, name: release}


def test_nothing_that_a_patch_covers_must_be_fixed(machine):
    """A version range stands in its patch: no finding may demand another version where that is applied."""
    judged = 0
    for one in PATCHES:
        for installed, device in itertools.product(installations_for(one), one.patch.devices or ("cpu", "npu", "cuda")):
            outcome = foretold(one, device, installed)
            if outcome.state != "armed":
                continue
            judged += 1
            here = replace(
                machine, device=device, versions=installed, outcomes=(outcome,), environ={"DS_ACCELERATOR": device}
            )
            found = [finding for check in versions.CHECKS for finding in check(here)]
            assert [finding.what for finding in found if finding.must_fix] == [], one
    assert judged > 1000


@pytest.mark.parametrize(
    ("device", "installed", "fixed_by"),
    [
        ("cpu", {"deepspeed": "0.9.2", "numpy": "2.4.6"}, "deepspeed.numpy_bufsize"),
        ("cpu", {"deepspeed": "0.6.0", "torch": "2.13.0"}, "deepspeed.torch_six"),
        ("npu", {"deepspeed": "0.9.2"}, "deepspeed.npu_accelerator"),
        ("npu-emulated", {"deepspeed": "0.9.2"}, "deepspeed.npu_accelerator"),
    ],
)
def test_what_a_patch_fixes_is_said_to_be_fixed(device, installed, fixed_by, machine):
    (one,) = [one for one in PATCHES if one.full_name == fixed_by]
    outcome = foretold(one, device.partition("-")[0], installed)
    here = replace(machine, device=device, outcomes=(outcome,))
    assert [finding.fixed_by for finding in versions.patched(here)] == [fixed_by]
    # With the patch left out, the combination must be fixed.
    disabled = replace(outcome, state="disabled", reason="by the user")
    (finding,) = versions.patched(replace(here, outcomes=(disabled,)))
    assert finding.must_fix
    assert f"{fixed_by} is disabled (by the user)" in finding.what


@pytest.mark.parametrize(("without", "must_fix"), [("wrong numbers", True), ("crash", False)])
def test_a_patch_that_drifted(without, must_fix, machine):
    drifted = replace(PATCHES[0].outcome("drifted", "it has moved", "deepspeed 0.99"), without=without)
    (finding,) = versions.patched(replace(machine, outcomes=(drifted,)))
    assert finding.must_fix is must_fix
    assert "does not fit deepspeed 0.99: it has moved" in finding.what


@pytest.mark.parametrize(
    ("installed", "what", "must_fix"),
    [
        ({"torch": None}, "torch is not installed", True),
        ({"deepspeed": "0.9.2", "pydantic": "2.14.4"}, "deepspeed 0.9.2 with pydantic 2.14.4", True),
        ({"deepspeed": "0.6.0"}, "deepspeed 0.6.0", False),
        ({"torch_npu": "2.7.1"}, "torch_npu is installed, but ASCEND_HOME_PATH is not set", False),
    ],
)
def test_what_no_patch_covers(installed, what, must_fix, machine):
    installed = {name: version for name, version in {**machine.versions, **installed}.items() if version is not None}
    (found,) = findings.examine(replace(machine, versions=installed))
    assert (found.what, found.must_fix) == (what, must_fix)


def test_a_torch_npu_for_another_torch(machine):
    installed = {**machine.versions, "torch_npu": "2.6.0"}
    found = findings.examine(replace(machine, versions=installed, environ={"ASCEND_HOME_PATH": "/"}))
    assert [one.what for one in found] == ["torch_npu 2.6.0 with torch 2.7.1+cpu"]


def test_a_version_that_is_none(machine):
    assert findings.examine(replace(machine, versions={**machine.versions, "deepspeed": "unknown"})) == ()


def test_pydantic_1_and_the_releases_that_brought_their_own(machine):
    for deepspeed, pydantic in (("0.9.2", "1.10.27"), ("0.11.2", "2.14.4"), ("0.6.7", "2.14.4")):
        here = replace(
            machine, device="cuda", versions={"torch": "2.7.1", "deepspeed": deepspeed, "pydantic": pydantic}
        )
        assert list(versions.known_combinations(here)) == []
