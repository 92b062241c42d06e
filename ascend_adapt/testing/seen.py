"""Creates evidence records for patches that were applied in this process."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

import ascend_adapt
from ascend_adapt import probe
from ascend_adapt.diagnosis import evidence
from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.patches.judge.installation import SourceTree


def record(one: Registered, tier: str, soc: str = "") -> evidence.EvidenceRecord:
    """Return the record of a patch that was applied to its real target in this process, which proves its wiring."""
    versions = {"torch": probe.distribution_version("torch"), "torch_npu": probe.distribution_version("torch_npu")}
    folder = probe.root_folder(one.patch.target.module)
    for requirement in one.patch.requires:
        tree = SourceTree(folder, installed=True) if folder is not None else None
        found = tree.version(requirement.name, one.patch.target).text if tree is not None else None
        versions[requirement.name] = found or probe.distribution_version(requirement.name)
    known = {name: version for name, version in versions.items() if version is not None}
    known |= {"soc": soc} if soc else {}
    return evidence.EvidenceRecord(one.full_name, tier, "wiring", known, commit(), _today())


def commit() -> str:
    """Return this project's commit, or its version if installed without git history."""
    return commit_of(Path(__file__)) or ascend_adapt.__version__


def commit_of(file: Path) -> str:
    """Return the commit of the repository that tracks ``file``, or "" if none does."""
    git = ["git", "-C", str(file.parent)]
    try:
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", file.name], capture_output=True, timeout=10)
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return head.stdout.strip() if tracked.returncode == head.returncode == 0 else ""


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()
