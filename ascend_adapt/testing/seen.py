"""Evidence of what this process saw."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

import ascend_adapt
from ascend_adapt import evidence, probe
from ascend_adapt.patches.installation import SourceTree
from ascend_adapt.patches.spec import Registered


def record(one: Registered, tier: str, soc: str = "") -> evidence.Record:
    """Return the record of a patch that was applied here to its real target: that proves its wiring."""
    versions = {"torch": probe.distribution_version("torch"), "torch_npu": probe.distribution_version("torch_npu")}
    folder = probe.root_folder(one.patch.target.root)
    for requirement in one.patch.requires:
        tree = SourceTree(folder, installed=True) if folder is not None else None
        found = tree.version(requirement.name, one.patch.target).text if tree is not None else None
        versions[requirement.name] = found or probe.distribution_version(requirement.name)
    told = {name: version for name, version in versions.items() if version is not None}
    told |= {"soc": soc} if soc else {}
    return evidence.Record(f"{one.plugin}.{one.name}", tier, "wiring", told, commit(), _today())


def commit() -> str:
    """Return this project's commit, or its version where it is installed without its history."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except OSError:
        return ascend_adapt.__version__
    return done.stdout.strip() if done.returncode == 0 else ascend_adapt.__version__


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()
