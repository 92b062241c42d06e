"""Doctor: diagnoses this host's versions and devices, and predicts known problems of jobs on a kind of device."""

from __future__ import annotations

import functools
import operator
import os
import platform
import resource
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from ascend_adapt import probe, terminal
from ascend_adapt.diagnosis import contradictions, findings, status_report
from ascend_adapt.diagnosis.findings import Finding, Machine, Ran, cuda, npu
from ascend_adapt.diagnosis.predicted import DISTRIBUTIONS, as_findings
from ascend_adapt.errors import SettingsError, of_each
from ascend_adapt.problems import known, reading
from ascend_adapt.problems.facts import of_names
from ascend_adapt.problems.reading import Reading
from ascend_adapt.runtime import settings
from ascend_adapt.runtime.plugin_manager import PluginManager

# Letter of ulimit -> resource, and the unit of ulimit.
_LIMITS = {"n": (resource.RLIMIT_NOFILE, 1), "u": (resource.RLIMIT_NPROC, 1), "l": (resource.RLIMIT_MEMLOCK, 1024)}
_TOOLS = {"npu": ("npu-smi", "info"), "cuda": ("nvidia-smi",)}
_STACKS = {"npu": npu.stack, "cuda": cuda.stack}
_TOOL_TIMEOUT_S = 20


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of this host.

    ``patched`` is the number of patches that would be applied to the installed packages. ``limits`` maps letters of
    ``ulimit`` to soft limits, where None means unlimited.
    """

    device: str
    device_reason: str
    device_nodes: Mapping[str, int]
    versions: Mapping[str, str]
    limits: Mapping[str, int | None]
    patched: int
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as plain data."""
        return asdict(self)


def examine(
    environ: Mapping[str, str], asked: str | None = None, root: Path = Path("/"), files: Sequence[Path] = ()
) -> Diagnosis:
    """Return the diagnosis of this host for jobs on one kind of device, without importing a package under test.

    Args:
        environ: the environment of the job.
        asked: requested device, as in `ascend-run --device`; None for ASCEND_ADAPT_DEVICE, else the detected device.
        root: root folder of the system files.
        files: scripts and configurations of the job, which are read but not run. They are checked for a job on an NPU
            if no device is requested or found.

    Raises:
        SettingsError: the device is unknown, an ASCEND_ADAPT_* variable is invalid, or a file cannot be read.
    """
    from ascend_adapt import __version__

    device, reason = probe.device_to_use(asked or environ.get("ASCEND_ADAPT_DEVICE"), environ)
    if device not in findings.OF_A_DEVICE:
        raise SettingsError(f"device {device!r}: expected auto, {', '.join(findings.OF_A_DEVICE)} — correct it")
    if files and asked is None and device == "cpu":
        reason += "; the files are checked for a job on an NPU"
    patches_device = "npu" if device == "npu-emulated" else device
    report = status_report.of_installation(environ={**environ, "ASCEND_ADAPT_DEVICE": patches_device})
    known = {name: version for name in DISTRIBUTIONS if (version := probe.distribution_version(name)) is not None}
    dev = root / "dev"
    nodes = {kind: tuple(dev / name for name in probe.device_nodes(kind, dev)) for kind in probe.DEVICE_NODES}
    distributions = frozenset(canonicalize_name(name) for name in probe.distributions())
    predicted, faults = _predicted(environ, device, asked, of_each(reading.read, files))
    machine = Machine(
        device=device,
        versions=known,
        nodes=nodes,
        environ=environ,
        folder=Path.cwd(),
        extensions=_extensions_folder(environ),
        now_s=time.time(),
        shm_bytes=_size(dev / "shm"),
        root=root,
        uid=os.getuid(),
        groups=frozenset(os.getgroups()),
        limits={letter: _limit(*which) for letter, which in _LIMITS.items()},
        outcomes=report.outcomes,
        torch_cuda=probe.torch_cuda(),
        tools={_TOOLS[device][0]: _output(_TOOLS[device], environ)} if device in _TOOLS else {},
        distributions=distributions,
        reads_packages=True,
    )
    stack = _STACKS[device](machine) if device in _STACKS else {}
    versions = {"ascend_adapt": __version__, "python": platform.python_version(), **stack}
    versions.update({name: known.get(name, "not installed") for name in DISTRIBUTIONS})
    problems = dict.fromkeys((*report.problems, *_kernel_problems(environ), *faults))
    found = (
        *findings.examine(machine),
        *predicted,
        *(Finding(problem, "its patches or kernels are missing", "see the message", True) for problem in problems),
    )
    counts = {kind: len(paths) for kind, paths in nodes.items()}
    return Diagnosis(device, reason, counts, versions, machine.limits, len(report.applying), found)


def _predicted(
    environ: Mapping[str, str], device: str, asked: str | None, readings: Sequence[Reading]
) -> tuple[list[Finding], list[str]]:
    """Return the known problems that a job would hit, and errors in the files that declare them."""
    problems, faults = known.problems(environ)
    names = {name for problem in problems if problem.when for name in problem.when.distributions}
    for_npu = asked is None and device == "cpu" and (readings or probe.distribution_version("torch_npu"))
    read = functools.reduce(operator.add, readings) if readings else None
    facts = of_names(names, environ, "npu" if for_npu else device, read)
    contradicting = contradictions.of_a_job(read, environ) if facts.device == "npu" else ()
    return [*as_findings(problems, facts), *contradicting], faults


def _kernel_problems(environ: Mapping[str, str]) -> list[str]:
    """Return errors of the plugins' kernel backends. Kernels are imported only if a plugin has backends."""
    manager = PluginManager.of(settings.resolve({**environ, "ASCEND_ADAPT_DEVICE": ""}))
    if not manager.extends_kernels:
        return []
    from ascend_adapt.kernels import dispatch

    manager.kernels(dispatch.unusable)
    return manager.problems


def _extensions_folder(environ: Mapping[str, str]) -> Path:
    default = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or os.path.expanduser("~")) / ".cache")
    return Path(environ.get("TORCH_EXTENSIONS_DIR") or default / "torch_extensions")


def _size(folder: Path) -> int:
    try:
        filesystem = os.statvfs(folder)
    except OSError:
        return 0
    return filesystem.f_frsize * filesystem.f_blocks


def _limit(which: int, unit: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft // unit


def _output(command: tuple[str, ...], environ: Mapping[str, str]) -> Ran | None:
    """Return the result of a driver tool, or None if it is not on PATH. A timeout handles a hung driver."""
    path = shutil.which(command[0], path=environ.get("PATH", os.defpath))
    if path is None:
        return None
    try:
        result = subprocess.run(
            (path, *command[1:]),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOOL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return Ran(124, f"no response in {_TOOL_TIMEOUT_S} s")
    except OSError as error:
        return Ran(126, error.strerror or str(error))
    return Ran(result.returncode, result.stdout + result.stderr)


def show(diagnosis: Diagnosis) -> None:
    """Print the diagnosis. Problems that must be fixed come last, where they are easy to see."""
    limits = ", ".join(f"-{letter} {_text(limit)}" for letter, limit in diagnosis.limits.items())
    terminal.pairs(
        [
            ("device", f"{diagnosis.device} ({diagnosis.device_reason})"),
            *((f"{kind} device nodes", str(count)) for kind, count in diagnosis.device_nodes.items()),
            *diagnosis.versions.items(),
            ("limits (ulimit)", limits),
            ("patches for the installed packages", f"{diagnosis.patched} (see `ascend-adapt status`)"),
        ]
    )
    for finding in sorted(diagnosis.findings, key=lambda one: (one.must_fix, not one.fixed_by)):
        if finding.fixed_by:
            terminal.line(f"fixed by {finding.fixed_by}: {finding.what} — {finding.why}", "dim")
        else:
            kind, style = ("must be fixed", "red") if finding.must_fix else ("note", "yellow")
            terminal.line(f"{kind}: {finding.what} — {finding.why} — {finding.do}", style)
    count = sum(finding.must_fix for finding in diagnosis.findings)
    if count:
        terminal.line(f"{count} problem{'s' * (count > 1)} must be fixed for a job on {diagnosis.device}", "red")
    else:
        terminal.line(f"nothing must be fixed for a job on {diagnosis.device}", "green")


def _text(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)
