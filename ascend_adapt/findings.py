"""What is known to go wrong on a machine: each check looks at plain facts and says what, why, and what to do.

Sources: upstream-facts and ascend-facts of the design notes; a fact about NPUs was read, not seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

_STALE_AFTER_S = 600
_SMALL_SHM = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One thing worth knowing: what was seen, why it matters, what to do; ``must_fix`` if a job cannot run so."""

    what: str
    why: str
    do: str
    must_fix: bool


@dataclass(frozen=True)
class Machine:
    """The facts that checks judge.

    ``versions`` holds installed distributions only, ``nodes`` the device nodes by kind, ``folder`` is where the user
    is, ``shm_bytes`` the size of /dev/shm.
    """

    device: str
    versions: Mapping[str, str]
    nodes: Mapping[str, tuple[Path, ...]]
    environ: Mapping[str, str]
    folder: Path
    extensions: Path
    now_s: float
    shm_bytes: int


@dataclass(frozen=True)
class Combination:
    """Versions that go wrong together; on ``device`` only, and with a variable set so only, where these are given."""

    requires: tuple[str, ...]
    why: str
    do: str
    device: str = ""
    variable: tuple[str, str] = ("", "")
    must_fix: bool = True


COMBINATIONS = (
    Combination(
        ("deepspeed<0.9.3",),
        device="npu",
        why="it has no NPU accelerator, and its engines hard-wire nccl",
        do="install deepspeed>=0.12.6, the first that was looked at with one",
    ),
    Combination(
        ("deepspeed>=0.12.6,<0.14.5",),
        variable=("DS_ACCELERATOR", "cpu"),
        why="its CPU accelerator raises without intel_extension_for_pytorch",
        do="unset DS_ACCELERATOR, install intel_extension_for_pytorch, or deepspeed>=0.14.5",
    ),
    Combination(
        ("deepspeed<=0.9.2", "pydantic>=2"),
        why="its configuration classes are pydantic 1's: 'FieldInfo' object has no attribute 'required'",
        do="install pydantic<2",
    ),
    Combination(
        ("deepspeed<=0.9.2", "numpy>=2"),
        why="deepspeed.autotuning imports numpy.BUFSIZE, which numpy 2 does not have",
        do="install numpy<2",
    ),
    Combination(
        ("deepspeed<=0.6.0", "torch>=2"),
        why="deepspeed.runtime.utils imports torch._six, which torch 2 does not have",
        do="install deepspeed>=0.9.2",
    ),
    Combination(
        ("setuptools>=82",),
        why="it has no pkg_resources, which GPT-NeoX v2.0 imports",
        do="for GPT-NeoX v2.0, install setuptools<82",
        must_fix=False,
    ),
    Combination(
        ("deepspeed>=0.19.8",),
        why="deepspeed.compression.compress is gone, which deepspeedai/Megatron-DeepSpeed imports",
        do="for that code base, install deepspeed<=0.16.9",
        must_fix=False,
    ),
)


def examine(machine: Machine) -> tuple[Finding, ...]:
    """Return all findings, in the order of the checks."""
    return tuple(finding for check in CHECKS for finding in check(machine))


def torch_is_there(machine: Machine) -> Iterator[Finding]:
    """Ranks import it."""
    if "torch" not in machine.versions:
        yield Finding(
            "torch is not installed", "every training script imports it", "install your cluster's torch", True
        )


def known_combinations(machine: Machine) -> Iterator[Finding]:
    """Versions that do not go together."""
    for one in COMBINATIONS:
        name, value = one.variable
        applies = one.device in ("", machine.device) and (not name or machine.environ.get(name) == value)
        found = _found(one.requires, machine.versions)
        if applies and found:
            setting = f", {name}={value}" if name else ""
            yield Finding(f"{' with '.join(found)}{setting}", one.why, one.do, one.must_fix)


def torch_npu_fits_torch(machine: Machine) -> Iterator[Finding]:
    """torch_npu is built for one torch."""
    ours, its = machine.versions.get("torch", ""), machine.versions.get("torch_npu", "")
    if ours and its and _release(ours) != _release(its):
        yield Finding(
            f"torch_npu {its} with torch {ours}",
            "each torch_npu is built for the torch of the same number and fails to load on another",
            f"install torch_npu for torch {ours.partition('+')[0]}, or the other way round",
            True,
        )


def cann_environment(machine: Machine) -> Iterator[Finding]:
    """torch_npu loads CANN's libraries when it is imported, and torch imports torch_npu."""
    home, opp = (machine.environ.get(name) for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH"))
    if "torch_npu" in machine.versions and not home:
        yield Finding(
            "torch_npu is installed, but ASCEND_HOME_PATH is not set",
            "without CANN's libraries even `import torch` raises, and transformers imports torch_npu unguarded",
            "source CANN's set_env.sh, or uninstall torch_npu on a machine without NPUs; ascend-run leaves it out "
            "of jobs on a CPU or GPU",
            True,
        )
    elif "torch_npu" in machine.versions and not opp:
        yield Finding(
            "ASCEND_HOME_PATH is set, but ASCEND_OPP_PATH is not",
            "torch_npu raises at import",
            "source CANN's set_env.sh instead of setting single variables",
            True,
        )
    for name, value in (("ASCEND_HOME_PATH", home), ("ASCEND_OPP_PATH", opp)):
        if value and not Path(value).is_dir():
            yield Finding(
                f"{name}={value} is not a folder", "CANN's libraries are looked for there", "correct or unset it", True
            )


def npu_nodes(machine: Machine) -> Iterator[Finding]:
    """Device nodes, and who may open them."""
    npus = machine.nodes.get("npu", ())
    if npus and "torch_npu" not in machine.versions:
        yield Finding(
            f"{len(npus)} NPU device nodes, but torch_npu is not installed",
            "jobs run on the CPU",
            "install torch_npu for your torch and CANN",
            False,
        )
    closed = [str(node) for node in npus if not os.access(node, os.R_OK | os.W_OK)]
    if closed:
        yield Finding(
            f"{', '.join(closed)} cannot be opened by this user",
            "every rank on it fails at its first tensor",
            "join the group that owns the nodes (often HwHiAiUser), or ask who runs the machine",
            True,
        )


def visible_devices(machine: Machine) -> Iterator[Finding]:
    """What the visible-device variables name must be there."""
    for kind, name in (("npu", "ASCEND_RT_VISIBLE_DEVICES"), ("cuda", "CUDA_VISIBLE_DEVICES")):
        count = len(machine.nodes.get(kind, ()))
        wanted = [int(word) for word in machine.environ.get(name, "").split(",") if word.strip().isdigit()]
        beyond = [str(number) for number in wanted if number >= count]
        if count and beyond:
            yield Finding(
                f"{name} names {', '.join(beyond)}, this machine has {count} {kind} devices",
                "the list ends at the first device that is not there",
                "name devices from 0 on",
                True,
            )


def allocator_settings(machine: Machine) -> Iterator[Finding]:
    """Two variables for one setting."""
    both = ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    if all(machine.environ.get(name) for name in both):
        yield Finding(f"{' and '.join(both)} are both set", "newer torch_npu aborts on both", "unset one of them", True)


def variables_that_change_jobs(machine: Machine) -> Iterator[Finding]:
    """Variables that are easily forgotten in a shell."""
    for name, values, why in (
        ("ASCEND_ADAPT", ("0", "false", "no", "off"), "no patch is applied in any job started from here"),
        ("ASCEND_LAUNCH_BLOCKING", ("1",), "every operator waits for the device: right for debugging, slow"),
        ("TORCH_DEVICE_BACKEND_AUTOLOAD", ("0",), "`import torch` does not load torch_npu, scripts must do so"),
        (
            "TORCH_TRANSFER_TO_NPU",
            ("1",),
            "torch_npu redirects CUDA calls by itself, beside the patches that ask for it",
        ),
        ("INF_NAN_MODE_ENABLE", ("0",), "overflow saturates, and loss scalers that look for Inf never see it"),
    ):
        if machine.environ.get(name) in values:
            yield Finding(f"{name}={machine.environ[name]}", why, "unset it unless that is what you want", False)


def rank_table(machine: Machine) -> Iterator[Finding]:
    """HCCL reads it when the first group is made."""
    name = machine.environ.get("RANK_TABLE_FILE", "")
    if name and not Path(name).is_file():
        yield Finding(
            f"RANK_TABLE_FILE={name} is not a file", "HCCL fails at the first group", "correct or unset it", True
        )


def python_path(machine: Machine) -> Iterator[Finding]:
    """An empty element is the folder a process happens to start in."""
    path = machine.environ.get("PYTHONPATH", "")
    if path and "" in path.split(os.pathsep):
        yield Finding(
            f"PYTHONPATH={path!r} has an empty element",
            "every Python of this shell imports modules from whatever folder it is started in",
            "remove the stray colon; ascend-run leaves the empty element out",
            False,
        )


def shell_scripts(machine: Machine) -> Iterator[Finding]:
    """Scripts edited on Windows."""
    for script in sorted(machine.folder.glob("*.sh")):
        if script.is_file() and os.access(script, os.R_OK) and b"\r\n" in script.read_bytes():
            yield Finding(
                f"{script.name} has Windows line ends",
                "bash takes the carriage return for a part of the word: $'\\r': command not found",
                f"sed -i 's/\\r$//' {script.name}",
                True,
            )


def stale_locks(machine: Machine) -> Iterator[Finding]:
    """Locks of torch's extension builder, which deletes its own unless it was killed; a young one may be in use."""
    for lock in sorted(machine.extensions.glob("**/lock")):
        age_s = machine.now_s - lock.stat().st_mtime
        yield Finding(
            f"{lock} is {age_s / 60:.0f} minutes old",
            "a killed build leaves its lock, and every later build of the same operator waits for ever",
            "if nothing is being compiled, delete the file",
            age_s > _STALE_AFTER_S,
        )


def shared_memory(machine: Machine) -> Iterator[Finding]:
    """DataLoader workers hand batches over in /dev/shm."""
    if machine.shm_bytes < _SMALL_SHM:
        yield Finding(
            f"/dev/shm has {machine.shm_bytes / (1 << 20):.0f} MiB",
            "DataLoader workers and collectives of ranks on one machine end in a bus error when it is full",
            "start the container with --shm-size or --ipc=host",
            False,
        )


def _found(requires: tuple[str, ...], versions: Mapping[str, str]) -> list[str]:
    """Return the installed versions that meet all requirements, or nothing."""
    found = []
    for requirement in map(Requirement, requires):
        version = versions.get(requirement.name, "")
        if not _release(version) or not requirement.specifier.contains(version, prereleases=True):
            return []
        found.append(f"{requirement.name} {version}")
    return found


def _release(version: str) -> tuple[int, ...]:
    try:
        return Version(version).release
    except InvalidVersion:
        return ()


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    torch_is_there,
    known_combinations,
    torch_npu_fits_torch,
    cann_environment,
    npu_nodes,
    visible_devices,
    allocator_settings,
    variables_that_change_jobs,
    rank_table,
    python_path,
    shell_scripts,
    stale_locks,
    shared_memory,
)
