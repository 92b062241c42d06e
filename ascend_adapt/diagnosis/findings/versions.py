"""Checks of installed versions: missing packages, and incompatible combinations with or without a patch.

Only patches declare their version ranges. These checks read the patches' expected outcomes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from ascend_adapt import probe
from ascend_adapt.diagnosis.findings.machine import Finding, Machine
from ascend_adapt.patches.declare.outcome import Outcome


@dataclass(frozen=True)
class Combination:
    """Incompatible versions that no patch fixes. If ``devices`` is given, they matter on these kinds of device only."""

    requires: tuple[str, ...]
    why: str
    do: str
    devices: tuple[str, ...] = ()
    must_fix: bool = True


COMBINATIONS = (
    # Source: upstream code. DeepSpeed's configuration uses pydantic from 0.7.0 on, and pydantic_v1.py from 0.11.2 on.
    Combination(
        ("deepspeed>=0.7,<0.11.2", "pydantic>=2"),
        why="its configuration classes need pydantic 1: 'FieldInfo' object has no attribute 'required'",
        do="install 'pydantic<2'",
    ),
    Combination(
        ("deepspeed<0.8.1",),
        devices=("npu", "cpu", "npu-emulated"),
        why="it has no accelerator abstraction: its engine calls torch.cuda directly",
        do="install deepspeed>=0.8.1, unless the code base redirects torch.cuda",
        must_fix=False,
    ),
)


def torch_is_there(machine: Machine) -> Iterator[Finding]:
    """Check that torch is installed."""
    if "torch" not in machine.versions:
        yield Finding(
            "torch is not installed",
            "every training script imports it",
            "install the torch build for your cluster",
            True,
        )


def known_combinations(machine: Machine) -> Iterator[Finding]:
    """Check for incompatible combinations of versions."""
    for one in COMBINATIONS:
        found = _found(one.requires, machine.versions)
        if found and (not one.devices or machine.device in one.devices):
            yield Finding(" with ".join(found), one.why, one.do, one.must_fix)


def patched(machine: Machine) -> Iterator[Finding]:
    """Report known problems that a patch fixes, and patches that cannot be applied."""
    for one in machine.outcomes:
        problem = _problem(one, machine.device)
        if one.state == "drifted":
            yield _drifted(one)
        elif problem and one.state in ("armed", "applied", "not_needed") and not one.reason:
            yield Finding(problem, one.why, "nothing", False, f"{one.plugin}.{one.patch}")
        elif problem and one.state == "disabled":
            yield Finding(
                f"{problem}, and patch {one.plugin}.{one.patch} is disabled ({one.reason})",
                one.why,
                "enable the patch, or install other versions",
                one.without == "crash",
            )


def torch_npu_fits_torch(machine: Machine) -> Iterator[Finding]:
    """Check that torch_npu matches torch."""
    ours, its = machine.versions.get("torch", ""), machine.versions.get("torch_npu", "")
    if ours and its and release(ours) != release(its):
        where = [
            str(folder)
            for name in ("torch", "torch_npu")
            if machine.reads_packages and (folder := probe.root_folder(name))
        ]
        yield Finding(
            f"torch_npu {its} with torch {ours}" + (f" (in {', '.join(dict.fromkeys(where))})" if where else ""),
            "each torch_npu is built for the torch with the same version number and fails to load with "
            "any other: undefined symbol",
            f"install the torch_npu for torch {ours.partition('+')[0]}, or the torch for this torch_npu",
            True,
        )


def torch_is_what_pip_lists(machine: Machine) -> Iterator[Finding]:
    """Check for a torch on sys.path that shadows the installed torch."""
    listed = machine.versions.get("torch", "")
    folder = probe.root_folder("torch") if machine.reads_packages and listed else None
    file = folder / "torch" / "version.py" if folder is not None else None
    match = re.search(r"__version__ = '([^']+)'", file.read_text()) if file is not None and file.is_file() else None
    if match and release(match[1]) != release(listed):
        yield Finding(
            f"`import torch` finds {match[1]} in {folder}, but pip lists {listed}",
            "extensions such as torch_npu are built for the version that pip lists: undefined symbol",
            "remove that folder from PYTHONPATH, or start Python in a different directory",
            True,
        )


def torch_npu_elsewhere(machine: Machine) -> Iterator[Finding]:
    """Check for torch_npu without NPUs, and for NPUs without torch_npu, if a job runs on another device."""
    npus, is_there = machine.nodes.get("npu", ()), "torch_npu" in machine.versions
    if machine.device == "npu":
        return
    if is_there and not machine.environ.get("ASCEND_HOME_PATH"):
        yield Finding(
            "torch_npu is installed, but ASCEND_HOME_PATH is not set",
            "without CANN's libraries `import torch` raises an error, because it loads torch_npu",
            "start jobs with ascend-run, which does not load torch_npu on a CPU or GPU, set "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0, or uninstall torch_npu",
            False,
        )
    if npus and not is_there:
        yield Finding(
            f"{len(npus)} NPU device nodes, but torch_npu is not installed",
            "jobs run on the CPU",
            "`ascend-adapt doctor --device npu` reports what is missing",
            False,
        )


def _drifted(one: Outcome) -> Finding:
    name = f"{one.plugin}.{one.patch}"
    stops = one.without == "wrong numbers"
    return Finding(
        f"patch {name} does not fit {one.found or one.target}: {one.reason}",
        f"{one.why} (without the patch: {one.without})",
        f"install a version that satisfies {one.requires}, or accept it with ASCEND_ADAPT_ALLOW_DRIFT={name}"
        if stops
        else "install another version if the job needs this",
        stops,
    )


def _problem(one: Outcome, device: str) -> str:
    """Return the versions that fail without a patch, together or on this kind of device only, or ""."""
    found = one.found.split(", ")
    if one.without == "slower" or not one.found or any(text.startswith("no ") for text in found):
        return ""
    if len(found) > 1:
        return " with ".join(found)
    kind = device.partition("-")[0]  # for patches, npu-emulated is an NPU
    return f"{one.found} on {device}" if one.without == "crash" and one.requires.endswith(f"device {kind}") else ""


def _found(requires: tuple[str, ...], versions: Mapping[str, str]) -> list[str]:
    """Return the installed versions if they meet all requirements, else []."""
    found = []
    for requirement in map(Requirement, requires):
        version = versions.get(requirement.name, "")
        if not release(version) or not requirement.specifier.contains(version, prereleases=True):
            return []
        found.append(f"{requirement.name} {version}")
    return found


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version's release segment, or () if the version is invalid."""
    try:
        return Version(version).release
    except InvalidVersion:
        return ()


CHECKS = (
    torch_is_there,
    known_combinations,
    torch_npu_fits_torch,
    torch_is_what_pip_lists,
    torch_npu_elsewhere,
    patched,
)
