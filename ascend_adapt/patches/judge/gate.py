"""Gate: decides whether a patch applies to the installed versions, and gives the reason.

Plugins only declare version ranges. The gate alone compares versions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_adapt import probe
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.spec import Patch
from ascend_adapt.patches.declare.target import Target
from ascend_adapt.patches.judge.installation import Installation, packages_named

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.version import Version


@dataclass(frozen=True)
class Verdict:
    """Verdict of the gate. ``admits`` is None while undecided. ``found`` lists the versions that were compared."""

    admits: bool | None
    reason: str
    found: str = ""


def judge(patch: Patch, device: str, hosts: Mapping[str, CodeBase], installation: Installation) -> Verdict:
    """Return whether ``patch`` applies to this device and installation."""
    if patch.devices and device not in patch.devices:
        return Verdict(False, f"is for {' or '.join(patch.devices)}, this process runs on {device}")
    of_hosts = [hosts[str(host)].module for host in patch.hosts]
    verdicts = [_judge_version(requirement, patch.target, of_hosts, installation) for requirement in patch.requires]
    if patch.hosts and patch.kind != "provide" and patch.host_script is None:
        # A provided module belongs to the code that imports it, and a script may be started in any folder.
        verdicts.append(_judge_hosts([hosts[str(host)] for host in patch.hosts], patch.target, installation))
    found = ", ".join(verdict.found for verdict in verdicts if verdict.found)
    answers = [verdict.admits for verdict in verdicts]
    answer = False if False in answers else None if None in answers else True
    reasons = [verdict.reason for verdict in verdicts if verdict.admits is answer and verdict.reason]
    return Verdict(answer, "; ".join(reasons), found)


def _judge_version(
    requirement: Requirement, target: Target, of_hosts: Sequence[str], installation: Installation
) -> Verdict:
    from packaging.version import InvalidVersion, Version

    name = requirement.name
    version = installation.version(name, target, of_hosts)
    if version.text is None:
        if version.later:
            module = next(iter(packages_named(name, of_hosts)), target.module)
            return Verdict(None, f"requires {requirement}; the version is checked when {module} is imported")
        if not packages_named(name, (*target.packages, *of_hosts)):
            return Verdict(False, f"requires {requirement}, {name} is not installed", f"no {name}")
        reason = f"requires {requirement}, found {name} without a version: no distribution owns it, no __version__"
        return Verdict(False, reason, f"{name} of unknown version")
    found = f"{name} {version.text}"
    note = f" ({version.note})" if version.note else ""
    try:
        exact = Version(version.text)
    except InvalidVersion:
        return Verdict(False, f"requires {requirement}, found {found}, which is not a version{note}", found)
    if not admits(requirement, exact):
        return Verdict(False, f"requires {requirement}, found {found}{note}", found)
    is_in_range = requirement.specifier.contains(exact, prereleases=True)
    treated = "" if is_in_range else f"{version.text} is treated as {exact.base_version}"
    return Verdict(True, "; ".join(filter(None, (version.note, treated))), found)


def admits(requirement: Requirement, version: Version) -> bool:
    """Return whether a version satisfies a requirement, including local versions (2.13.0+cpu) and pre-releases.

    By PEP 440, 2.0rc1 is neither in >=2 nor in <2. The gate treats a pre-release as its release.
    """
    if requirement.specifier.contains(version, prereleases=True):
        return True
    return version.is_prerelease and requirement.specifier.contains(version.base_version)


def _judge_hosts(hosts: Sequence[CodeBase], target: Target, installation: Installation) -> Verdict:
    verdicts = [_judge_host(host, target, installation) for host in hosts]
    answers = [verdict.admits for verdict in verdicts]
    answer = True if True in answers else None if None in answers else False
    deciding = [verdict for verdict in verdicts if verdict.admits is answer]
    reasons = dict.fromkeys(verdict.reason for verdict in deciding if verdict.reason)
    return Verdict(answer, "; ".join(reasons), deciding[0].found)


def _judge_host(host: CodeBase, target: Target, installation: Installation) -> Verdict:
    """Judge one code base. A target in a shared library, such as numpy, is admitted once its code runs."""
    folder = installation.folder(target.module)
    if folder is not None and not host.owns(folder):
        is_shared = target.root not in host.roots and installation.gains_paths and _is_of_a_library(target.root, folder)
        return _once_begun(host, installation) if is_shared else Verdict(True, "")
    home = folder if target.root in host.roots else installation.folder(host.module)
    if home is None:
        if folder is None or (installation.gains_paths and _is_of_a_library(target.root, folder)):
            return Verdict(None, f"is for {host}, checked when {host.root if folder else target.root} is imported")
        return Verdict(False, f"is for {host}: {host.owns(folder)}", f"no {host.root}")
    foreign = host.owns(home)
    if foreign:
        return Verdict(False, f"is for {host}: {foreign}", f"{target.root if home is folder else host.root} in {home}")
    if any((home / name).exists() for name in (target.root, f"{target.root}.py")):
        return Verdict(False, f"is for {host}: {target.root} is imported from {folder}", f"{target.root} in {folder}")
    return _once_begun(host, installation)


def _once_begun(host: CodeBase, installation: Installation) -> Verdict:
    """Admit the patch once the code base runs, because other programs use the shared target as well."""
    if any(installation.has_begun(root) for root in host.roots) or installation.runs_a_script_of(host):
        return Verdict(True, "")
    return Verdict(None, f"is for {host}, checked when {host.root} is imported")


def _is_of_a_library(root: str, folder: Path) -> bool:
    """Return whether ``root`` belongs to Python or to an installed distribution, not to a code base.

    Packages installed with ``--target`` or ``--editable`` may be in any folder, but their distribution is known.
    """
    ours = folder.name in ("site-packages", "dist-packages") or folder == Path(os.__file__).parent
    return ours or probe.distribution_version(root) is not None
