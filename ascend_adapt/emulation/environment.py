"""Requirements and environment variables of a job on an emulated NPU."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ascend_adapt import probe
from ascend_adapt.emulation import MAX_DEVICES, SOCS, build, full_size, wheel
from ascend_adapt.errors import EmulationError
from ascend_adapt.whole_numbers import whole_number

_MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Emulation:
    """An emulated machine: its devices, its torch_npu, and the CANN that torch_npu loads."""

    soc: str
    devices: int | None
    """None: one for each rank that a launcher starts."""
    torch_npu: wheel.Wheel
    cann_home: Path
    full_size_steps: int | None = None
    """Number of optimizer steps after which a job at full size ends."""
    memory: int | None = None
    """Memory of a device in GiB; None uses ASCEND_ADAPT_EMULATED_MEMORY."""

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for every process of the job, except PYTHONPATH."""
        users = [entry for entry in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
        return {
            **({full_size.VARIABLE: str(self.full_size_steps)} if self.full_size_steps else {}),
            **({"ASCEND_ADAPT_EMULATED_MEMORY": str(self.memory << 30)} if self.memory else {}),
            "ASCEND_ADAPT_EMULATED": "1",
            **({"ASCEND_ADAPT_EMULATED_DEVICES": str(self.devices)} if self.devices else {}),
            "ASCEND_ADAPT_EMULATED_SOC": SOCS[self.soc],
            "LD_LIBRARY_PATH": os.pathsep.join([str(self.cann_home / "lib64"), *users]),
            # The variables that CANN's set_env.sh sets. DeepSpeed and torch_npu read both.
            "ASCEND_HOME_PATH": str(self.cann_home),
            "ASCEND_OPP_PATH": str(self.cann_home / "opp"),
            # With torch_npu's task queue, a second thread would launch collectives after the emulated kernels have run.
            "TASK_QUEUE_ENABLE": "0",
        }

    def python_path(self, before: str) -> str:
        """Return PYTHONPATH with the wheel appended."""
        return os.pathsep.join([*(entry for entry in before.split(os.pathsep) if entry), str(self.torch_npu.site)])


def prepare(
    soc: str,
    devices: int | None,
    environ: Mapping[str, str],
    say: Callable[[str], None] = lambda text: None,
    full_size_steps: int | None = None,
    memory: int | None = None,
) -> Emulation:
    """Return an emulated machine; on first use, download and build its parts, and log this.

    Raises:
        EmulationError: this machine cannot emulate an NPU, or has real NPUs or CANN.
    """
    _check_machine(environ)
    _check_request(devices or 1, environ)
    build.find_compiler(environ)
    torch_npu = wheel.for_installed_torch(environ, say)
    return Emulation(soc, devices, torch_npu, build.cann_home(torch_npu, environ), full_size_steps, memory)


def count_devices(nproc: int | None, environ: Mapping[str, str]) -> int | None:
    """Return how many devices --nproc or ASCEND_RT_VISIBLE_DEVICES requires, or None if neither is given."""
    visible = environ.get("ASCEND_RT_VISIBLE_DEVICES", "")
    named = [number + 1 for number in map(whole_number, visible.split(",")) if number is not None]
    return max([nproc or 1, *named]) if nproc or named else None


def _check_machine(environ: Mapping[str, str]) -> None:
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        raise EmulationError(
            f"--device npu-emulated: this is {sys.platform} on {platform.machine()}, expected Linux on "
            f"{' or '.join(_MACHINES)}, for which torch_npu is released — use such a machine or a container"
        )
    nodes = probe.device_nodes("npu")
    if nodes:
        raise EmulationError(
            f"--device npu-emulated: this host has NPUs (/dev/{nodes[0]}), expected none — use --device npu"
        )
    found = _real_cann(environ)
    if found is not None:
        raise EmulationError(
            f"--device npu-emulated: a real CANN is installed ({found}), expected none, since torch_npu might load its "
            "libraries — start from a shell that has not sourced set_env.sh"
        )


def _check_request(devices: int, environ: Mapping[str, str]) -> None:
    if devices > MAX_DEVICES:
        raise EmulationError(
            f"--device npu-emulated: {devices} devices are requested, expected at most {MAX_DEVICES} — use a smaller "
            "--nproc, or smaller numbers in ASCEND_RT_VISIBLE_DEVICES"
        )
    _check_cann(environ)
    memory = environ.get("ASCEND_ADAPT_EMULATED_MEMORY")
    if memory is not None and (re.fullmatch(r"[0-9]{1,18}", memory) is None or int(memory) == 0):
        raise EmulationError(
            f"ASCEND_ADAPT_EMULATED_MEMORY: is {memory!r}, expected a device's memory in bytes, such as {64 << 30} — "
            "set it to an integer, or unset it"
        )


def _check_cann(environ: Mapping[str, str]) -> None:
    version = environ.get("ASCEND_ADAPT_EMULATED_CANN")
    if version is not None and re.fullmatch(r"[1-9]\.\d{1,2}\.(\d{1,2}|RC\d{1,2})(\.[a-z0-9]{1,12})?", version) is None:
        raise EmulationError(
            f"ASCEND_ADAPT_EMULATED_CANN: is {version!r}, expected a version of CANN, such as 8.5.0 or 8.1.RC1 — "
            "correct or unset it"
        )


def _real_cann(environ: Mapping[str, str]) -> Path | None:
    """Return the path of a real CANN library that a process with this environment would load."""
    folders = environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if environ.get("ASCEND_HOME_PATH"):
        folders.append(os.path.join(environ["ASCEND_HOME_PATH"], "lib64"))
    for folder in filter(None, folders):
        library = Path(folder, "libascendcl.so")
        if library.exists() and b"ascend_adapt_emulated" not in library.read_bytes():
            return library
    return None
