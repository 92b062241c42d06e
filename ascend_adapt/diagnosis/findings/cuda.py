"""Checks of NVIDIA GPUs: driver, device nodes, and the CUDA build of torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ascend_adapt.diagnosis.findings.machine import Finding, Machine

_DRIVER = "/proc/driver/nvidia/version"
_CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_LITTLE_LOCKED_KIB = 1 << 16


def stack(machine: Machine) -> Mapping[str, str]:
    """Return the versions of the software between the GPUs and torch, by name."""
    return {"NVIDIA driver": _driver(machine) or "not found", "CUDA of torch": machine.torch_cuda or "none"}


def driver(machine: Machine) -> Iterator[Finding]:
    """Check the kernel module, which a container shares with its host. WSL has none, but uses the Windows driver."""
    if not _driver(machine) and not machine.at("/dev/dxg").exists():
        yield Finding(
            f"no NVIDIA driver is loaded: {_DRIVER} does not exist",
            "torch.cuda.is_available() is False",
            "install NVIDIA's driver on the host, or start the container with --gpus all",
            True,
        )
    tool = machine.tools.get("nvidia-smi")
    if tool is None:
        yield Finding("nvidia-smi is not on PATH", "GPUs cannot be inspected", "add its folder to PATH", False)
    elif tool.exit_code:
        yield Finding(
            f"nvidia-smi failed with exit code {tool.exit_code}: {_last_line(tool.output)}",
            "the driver does not respond; after an update the library and the kernel module often differ in version",
            "reboot the host, or reload the module nvidia",
            True,
        )


def nodes(machine: Machine) -> Iterator[Finding]:
    """Check the device nodes that the CUDA runtime opens."""
    if machine.at("/dev/dxg").exists():
        return
    gpus = machine.nodes.get("cuda", ())
    missing = [] if gpus else ["/dev/nvidia0"]
    missing += [path for path in _CONTROL_NODES if not machine.at(path).exists()]
    if missing:
        yield Finding(
            f"{', '.join(missing)}: not found",
            "no process can open a GPU",
            "start the container with --gpus all; on a host run `nvidia-modprobe -u -c 0`",
            True,
        )


def torch_is_built_for_cuda(machine: Machine) -> Iterator[Finding]:
    """Check whether torch is built with CUDA, for a version that the driver supports."""
    if "torch" not in machine.versions:
        return
    if not machine.torch_cuda:
        yield Finding(
            f"torch {machine.versions['torch']} is built without CUDA",
            "torch.cuda.is_available() is False",
            "install a CUDA build of torch (see pytorch.org/get-started)",
            True,
        )
        return
    tool = machine.tools.get("nvidia-smi")
    newest = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", tool.output) if tool is not None else None
    if newest is not None and int(newest[1]) < int(machine.torch_cuda.partition(".")[0]):
        yield Finding(
            f"torch is built with CUDA {machine.torch_cuda}, but the driver supports at most CUDA "
            f"{newest[1]}.{newest[2]}",
            "the driver is too old: CUDA driver version is insufficient for CUDA runtime version",
            f"update the NVIDIA driver, or install a torch built with CUDA {newest[1]}",
            True,
        )


def locked_memory(machine: Machine) -> Iterator[Finding]:
    """Check the limit on locked memory (ulimit -l), which InfiniBand needs for its buffers."""
    limit = machine.limits.get("l")
    if limit is not None and limit < _LITTLE_LOCKED_KIB:
        yield Finding(
            f"ulimit -l is {limit} KiB",
            "NCCL over InfiniBand cannot lock its buffers: ibv_reg_mr failed, Cannot allocate memory",
            "ulimit -l unlimited, or in /etc/security/limits.conf; for a container: --ulimit memlock=-1",
            False,
        )


def _driver(machine: Machine) -> str:
    path = machine.at(_DRIVER)
    match = re.search(r"(?:Kernel Module\s+(?:for \S+\s+)?)(\d[\d.]+)", path.read_text()) if path.is_file() else None
    return match[1] if match else ""


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]


CHECKS = (driver, nodes, torch_is_built_for_cuda, locked_memory)
