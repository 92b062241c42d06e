"""Detection of a real NPU, required for the evidence tier ``hardware``."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from ascend_adapt import probe
from ascend_adapt.errors import AdaptError


class NoHardware(AdaptError):
    """This host has no NPU, or an emulated one."""


def real_npu(dev: Path = Path("/dev"), maps: Path = Path("/proc/self/maps")) -> str:
    """Return the SoC name that the NPU runtime reports.

    Raises:
        NoHardware: a device node, torch_npu or a device is missing, or the runtime is an emulation.
    """
    say = "--hardware: {}, expected a real NPU — run the suite on an NPU host, or without --hardware"
    if not probe.device_nodes("npu", dev):
        raise NoHardware(say.format(f"{dev} has no davinci device node"))
    if probe.distribution_version("torch_npu") is None:
        raise NoHardware(say.format("torch_npu is not installed"))
    try:
        import torch
        import torch_npu  # noqa: F401
    except Exception as error:  # torch_npu passes on any error of its libraries
        raise NoHardware(say.format(f"torch_npu cannot be imported ({error})")) from error
    if torch.npu.device_count() < 1:
        raise NoHardware(say.format("torch_npu finds no device"))
    torch.npu.set_device(0)
    library = _loaded_library(maps.read_text())
    if library is None or any(part.startswith("ascend_adapt") for part in library.parts):
        raise NoHardware(say.format(f"the runtime is {library or 'not loaded'}, an emulation"))
    return _soc_name(ctypes.CDLL(str(library)), say)


def _loaded_library(maps: str) -> Path | None:
    """Return the path of the Ascend runtime library that this process has mapped."""
    match = re.search(r"(/\S*/libascendcl\.so\S*)$", maps, re.MULTILINE)
    return Path(match[1]).resolve() if match else None


def _soc_name(library: Any, say: str) -> str:
    library.aclrtGetSocName.restype = ctypes.c_char_p
    name = (library.aclrtGetSocName() or b"").decode()
    if not name.startswith("Ascend"):
        raise NoHardware(say.format(f"aclrtGetSocName returns {name!r}"))
    return name
