"""What is on this machine, and what is known to go wrong with it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ascend_adapt import findings, probe
from ascend_adapt.findings import Finding, Machine
from ascend_adapt.plugin_manager import PluginManager

DISTRIBUTIONS = (
    "torch",
    "torch_npu",
    "deepspeed",
    "megatron-core",
    "transformers",
    "accelerate",
    "numpy",
    "pydantic",
    "setuptools",
)


@dataclass(frozen=True)
class Diagnosis:
    """What was found on this machine."""

    device: str
    device_reason: str
    device_nodes: Mapping[str, int]
    versions: Mapping[str, str]
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as plain data."""
        return asdict(self)


def examine(environ: Mapping[str, str]) -> Diagnosis:
    """Return versions, devices and findings of this machine; nothing heavy is imported."""
    from ascend_adapt import __version__

    device, reason = probe.detect_device(environ)
    known = {name: version for name in DISTRIBUTIONS if (version := probe.distribution_version(name)) is not None}
    nodes = {kind: tuple(Path("/dev", name) for name in probe.device_nodes(kind)) for kind in probe.DEVICE_NODES}
    machine = Machine(
        device=device,
        versions=known,
        nodes=nodes,
        environ=environ,
        folder=Path.cwd(),
        extensions=_extensions_folder(environ),
        now_s=time.time(),
        shm_bytes=_size("/dev/shm"),
    )
    found = (
        *findings.examine(machine),
        *(Finding(problem, "its patches are missing", "see the message", True) for problem in _plugin_problems()),
    )
    versions = {"ascend_adapt": __version__, "python": platform.python_version()}
    versions.update({name: known.get(name, "not installed") for name in DISTRIBUTIONS})
    return Diagnosis(device, reason, {kind: len(paths) for kind, paths in nodes.items()}, versions, found)


def _extensions_folder(environ: Mapping[str, str]) -> Path:
    default = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or os.path.expanduser("~")) / ".cache")
    return Path(environ.get("TORCH_EXTENSIONS_DIR") or default / "torch_extensions")


def _size(folder: str) -> int:
    try:
        told = os.statvfs(folder)
    except OSError:
        return 0
    return told.f_frsize * told.f_blocks


def _plugin_problems() -> list[str]:
    manager = PluginManager()
    manager.patches()
    if manager.extends_kernels:
        from ascend_adapt.kernels import dispatch

        manager.kernels(dispatch.unusable)
    return manager.problems


def show(diagnosis: Diagnosis) -> None:
    """Print the diagnosis."""
    print(f"device: {diagnosis.device} ({diagnosis.device_reason})")
    for kind, count in diagnosis.device_nodes.items():
        print(f"{kind} device nodes: {count}")
    for name, version in diagnosis.versions.items():
        print(f"{name}: {version}")
    for finding in diagnosis.findings:
        mark = "must be fixed" if finding.must_fix else "note"
        print(f"{mark}: {finding.what} — {finding.why} — {finding.do}")
    if not any(finding.must_fix for finding in diagnosis.findings):
        print("nothing must be fixed")
