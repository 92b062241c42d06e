"""What is on this machine, and what is known to go wrong with it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ascend_adapt import probe
from ascend_adapt.plugin_manager import PluginManager

DISTRIBUTIONS = (
    "torch",
    "torch_npu",
    "deepspeed",
    "megatron-core",
    "transformers",
    "accelerate",
    "numpy",
    "setuptools",
)
_STALE_AFTER_S = 600


@dataclass(frozen=True)
class Finding:
    """One thing worth knowing: what was seen, why it matters, what to do; ``must_fix`` if a job cannot run so."""

    what: str
    why: str
    do: str
    must_fix: bool


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
    versions = {"ascend_adapt": __version__, "python": platform.python_version()}
    for name in DISTRIBUTIONS:
        versions[name] = probe.distribution_version(name) or "not installed"
    findings = (
        *_missing_torch(versions),
        *_torch_npu_without_cann(versions, environ),
        *_allocator_settings(environ),
        *_pkg_resources(versions),
        *_stale_locks(_extensions_folder(environ), time.time()),
        *(Finding(problem, "its patches are missing", "see the message", True) for problem in _plugin_problems()),
    )
    nodes = {kind: len(probe.device_nodes(kind)) for kind in probe.DEVICE_NODES}
    return Diagnosis(device, reason, nodes, versions, findings)


def _missing_torch(versions: Mapping[str, str]) -> list[Finding]:
    if versions["torch"] != "not installed":
        return []
    return [Finding("torch is not installed", "ranks are started with it", "install the torch of your cluster", True)]


def _torch_npu_without_cann(versions: Mapping[str, str], environ: Mapping[str, str]) -> list[Finding]:
    if versions["torch_npu"] == "not installed" or environ.get("ASCEND_HOME_PATH"):
        return []
    return [
        Finding(
            "torch_npu is installed, but ASCEND_HOME_PATH is not set",
            "without CANN's libraries even `import torch` raises, and transformers imports torch_npu unguarded",
            "source CANN's set_env.sh, or uninstall torch_npu on a machine without NPUs",
            True,
        )
    ]


def _allocator_settings(environ: Mapping[str, str]) -> list[Finding]:
    both = ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    if not all(environ.get(name) for name in both):
        return []
    return [
        Finding(f"{' and '.join(both)} are both set", "torch_npu takes one of them only", "unset one of them", True)
    ]


def _pkg_resources(versions: Mapping[str, str]) -> list[Finding]:
    major = versions["setuptools"].partition(".")[0]
    if not major.isdigit() or int(major) < 82:
        return []
    return [
        Finding(
            f"setuptools {versions['setuptools']} has no pkg_resources",
            "GPT-NeoX v2.0 imports it",
            "for GPT-NeoX v2.0, install setuptools<82",
            False,
        )
    ]


def _extensions_folder(environ: Mapping[str, str]) -> Path:
    default = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or os.path.expanduser("~")) / ".cache")
    return Path(environ.get("TORCH_EXTENSIONS_DIR") or default / "torch_extensions")


def _stale_locks(folder: Path, now: float) -> list[Finding]:
    """Locks that torch's extension builder left behind: it deletes its lock itself, unless it was killed."""
    findings = []
    for lock in sorted(folder.glob("**/lock")):
        age_s = now - lock.stat().st_mtime
        if age_s > _STALE_AFTER_S:
            findings.append(
                Finding(
                    f"{lock} is {age_s / 60:.0f} minutes old",
                    "a killed build leaves its lock, and every later build of the same operator waits for ever",
                    "if nothing is being compiled, delete the file",
                    True,
                )
            )
    return findings


def _plugin_problems() -> list[str]:
    manager = PluginManager()
    manager.patches()
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
