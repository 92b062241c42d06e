"""The variables that processes of a job get: what reaches them with patches, and defaults that a user's value beats."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_adapt.launch.request import Request

if TYPE_CHECKING:
    from ascend_adapt.emulation.environment import Emulation

BOOTSTRAP = str(Path(__file__).parent / "bootstrap")
SWITCHED_OFF = {"ASCEND_ADAPT": "0"}


def of_patches(request: Request, device: str, targets: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return what makes every Python process of the job adapt itself.

    ``targets`` are the top-level modules that patches are for.
    """

    def joined(name: str, words: tuple[str, ...]) -> dict[str, str]:
        everything = [word for word in (environ.get(name, ""), *words) if word]
        return {name: ",".join(everything)} if words else {}

    return {
        "PYTHONPATH": python_path(environ.get("PYTHONPATH", "")),
        "ASCEND_ADAPT_TARGETS": ",".join(sorted(targets)),
        "ASCEND_ADAPT_DEVICE": device,
        **joined("ASCEND_ADAPT_DISABLE", request.disable),
        **joined("ASCEND_ADAPT_ALLOW_DRIFT", request.allow_drift),
        **({"ASCEND_ADAPT_STRICT": "1"} if request.strict else {}),
        **({"ASCEND_ADAPT_DEBUG": "1"} if request.debug else {}),
    }


def python_path(users: str) -> str:
    """Return PYTHONPATH with the bootstrap first and no empty element, which would mean the current folder."""
    return os.pathsep.join([BOOTSTRAP, *(entry for entry in users.split(os.pathsep) if entry not in ("", BOOTSTRAP))])


def of_emulation(emulation: Emulation, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what puts every Python process of the job on an emulated NPU, with patches or without."""
    return {
        **emulation.variables(environ),
        "PYTHONPATH": emulation.python_path(python_path(environ.get("PYTHONPATH", ""))),
    }


def visible_npus(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the NPUs that a user means who has said so for GPUs only."""
    if "ASCEND_RT_VISIBLE_DEVICES" in environ or "CUDA_VISIBLE_DEVICES" not in environ:
        return {}
    return {"ASCEND_RT_VISIBLE_DEVICES": environ["CUDA_VISIBLE_DEVICES"]}


def of_device(device: str, run_dir: str, hccl_base_port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults for one kind of device, without those that the user has set.

    Source: the Ascend documentation's environment variables, read through design notes, not tried on an NPU.
    """
    if device != "npu":
        return {}
    defaults = {
        # 120 s is what HCCL waits; loading a large checkpoint on one rank takes longer.
        "HCCL_CONNECT_TIMEOUT": "1200",
        "HCCL_WHITELIST_DISABLE": "1",
        "HCCL_IF_BASE_PORT": str(hccl_base_port),
        "ASCEND_PROCESS_LOG_PATH": os.path.join(run_dir, "npu-logs"),
        # Megatron asserts it, whatever the device.
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    defaults.update(visible_npus(environ))
    return {name: value for name, value in defaults.items() if name not in environ}
