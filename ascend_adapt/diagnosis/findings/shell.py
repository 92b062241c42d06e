"""Checks of the shell and the host: variables, scripts, shared memory and limits that affect jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ascend_adapt.diagnosis.findings.machine import Finding, Machine
from ascend_adapt.whole_numbers import whole_number

_SMALL_SHM = 1 << 30
# A rank has sockets to most other ranks, and file descriptors for token files, shards and DataLoader workers.
_FEW_FILES = 4096
_FEW_PROCESSES = 4096


def visible_devices(machine: Machine) -> Iterator[Finding]:
    """Check the visible-device variables for device numbers that do not exist."""
    for kind, name in (("npu", "ASCEND_RT_VISIBLE_DEVICES"), ("cuda", "CUDA_VISIBLE_DEVICES")):
        count = len(machine.nodes.get(kind, ()))
        wanted = map(whole_number, machine.environ.get(name, "").split(","))
        beyond = [str(number) for number in wanted if number is not None and number >= count]
        if count and beyond:
            yield Finding(
                f"{name} lists {', '.join(beyond)}, this host has {count} {kind} devices",
                "the list ends at the first device that does not exist",
                "use device numbers from 0 on",
                True,
            )


def allocator_settings(machine: Machine) -> Iterator[Finding]:
    """Check for two variables that set the same allocator option."""
    both = ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    if all(machine.environ.get(name) for name in both):
        yield Finding(
            f"{' and '.join(both)} are both set",
            "newer torch_npu releases abort if both are set",
            "unset one of them",
            True,
        )


def variables_that_change_jobs(machine: Machine) -> Iterator[Finding]:
    """Check for variables that change jobs and are easily forgotten in a shell."""
    for name, values, why in (
        ("ASCEND_ADAPT", ("0", "false", "no", "off"), "no patch is applied in any job started from here"),
        ("ASCEND_LAUNCH_BLOCKING", ("1",), "every operator waits for the device: good for debugging, but slow"),
        ("TORCH_DEVICE_BACKEND_AUTOLOAD", ("0",), "`import torch` does not load torch_npu, so scripts must import it"),
        (
            "TORCH_TRANSFER_TO_NPU",
            ("1",),
            "torch_npu redirects CUDA calls itself, on top of the patches that do so",
        ),
        ("INF_NAN_MODE_ENABLE", ("0",), "overflow saturates, so loss scalers that check for Inf never detect it"),
    ):
        if machine.environ.get(name) in values:
            yield Finding(f"{name}={machine.environ[name]}", why, "unset it unless this is intended", False)


def rank_table(machine: Machine) -> Iterator[Finding]:
    """Check the rank table, which HCCL reads when the first process group is created."""
    name = machine.environ.get("RANK_TABLE_FILE", "")
    if name and not Path(name).is_file():
        yield Finding(
            f"RANK_TABLE_FILE={name} is not a file",
            "HCCL fails when the first process group is created",
            "correct or unset it",
            True,
        )


def python_path(machine: Machine) -> Iterator[Finding]:
    """Check PYTHONPATH for empty elements, each of which adds the current directory of a process."""
    path = machine.environ.get("PYTHONPATH", "")
    if path and "" in path.split(os.pathsep):
        yield Finding(
            f"PYTHONPATH={path!r} has an empty element",
            "every Python process of this shell imports modules from its current directory",
            "remove the stray colon; ascend-run drops the empty element",
            False,
        )


def shell_scripts(machine: Machine) -> Iterator[Finding]:
    """Check for shell scripts with Windows line endings."""
    for script in sorted(machine.folder.glob("*.sh")):
        if script.is_file() and os.access(script, os.R_OK) and b"\r\n" in script.read_bytes():
            yield Finding(
                f"{script.name} has Windows line endings",
                "bash treats the carriage return as part of the word: $'\\r': command not found",
                f"sed -i 's/\\r$//' {script.name}",
                True,
            )


def shared_memory(machine: Machine) -> Iterator[Finding]:
    """Check the size of /dev/shm, through which DataLoader workers pass batches."""
    if machine.shm_bytes < _SMALL_SHM:
        yield Finding(
            f"/dev/shm has {machine.shm_bytes / (1 << 20):.0f} MiB",
            "DataLoader workers and collectives of ranks on one host crash with a bus error when it is full",
            "start the container with --shm-size=16g or --ipc=host",
            False,
        )


def limits(machine: Machine) -> Iterator[Finding]:
    """Check the soft limits that the processes of a job inherit from the shell."""
    for letter, few, why in (
        ("n", _FEW_FILES, "a rank needs more for token files, shards, sockets and workers: Too many open files"),
        ("u", _FEW_PROCESSES, "every rank starts tens of threads: can't start new thread"),
    ):
        limit = machine.limits.get(letter)
        if limit is not None and limit < few:
            yield Finding(
                f"ulimit -{letter} is {limit}",
                why,
                f"ulimit -{letter} 65536, or raise it in /etc/security/limits.conf; for a container: --ulimit",
                False,
            )


CHECKS = (
    visible_devices,
    allocator_settings,
    variables_that_change_jobs,
    rank_table,
    python_path,
    shell_scripts,
    shared_memory,
    limits,
)
