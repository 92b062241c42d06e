"""Read-only facts about this process and host, found without importing torch or a target."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from ascend_adapt.whole_numbers import whole_number

DEVICE_NODES = {"npu": "davinci[0-9]*", "cuda": "nvidia[0-9]*"}
_INITIALIZED_RANK = "ASCEND_ADAPT_INITIALIZED_RANK"
VISIBLE_DEVICES = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}


def own_rank() -> int | None:
    """Return this process's rank, or None. A process that a rank starts inherits RANK, but is not a rank."""
    if is_own_pid(os.environ.get("ASCEND_ADAPT_RANK_PID", "")) and os.environ.get("RANK"):
        return whole_number(os.environ["RANK"])
    claim = os.environ.get(_INITIALIZED_RANK, "")
    return whole_number(claim.partition(" ")[2]) if is_own_pid(claim) else None


def set_own_rank(rank: int) -> None:
    """Record that this process is a rank: it has initialized torch.distributed, without RANK in its environment."""
    os.environ[_INITIALIZED_RANK] = f"{os.getpid()} {rank}"


def inherited_rank() -> int | None:
    """Return the rank of this process, or of the process that started it, or None."""
    initialized = os.environ.get(_INITIALIZED_RANK, "").partition(" ")[2]
    return whole_number(initialized or os.environ.get("RANK"))


def is_own_pid(claim: str) -> bool:
    """Return whether a variable that begins with a pid was set by this process."""
    return claim.partition(" ")[0] == str(os.getpid())


def runs_a_script() -> bool:
    """Return whether this process runs a user's file rather than an installed launcher such as torchrun."""
    if is_own_pid(os.environ.get("ASCEND_ADAPT_RANK_PID", "")):
        return True  # ascend-run has started it.
    file = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    return file.suffix == ".py" and not {"site-packages", "dist-packages"} & {*file.parts}


def device_nodes(kind: str, dev: Path = Path("/dev")) -> list[str]:
    """Return the names of this host's device nodes of one kind (``npu`` or ``cuda``), in numerical order."""
    nodes = (path.name for path in dev.glob(DEVICE_NODES[kind]))
    return sorted(nodes, key=lambda name: int(re.sub(r"\D", "", name) or 0))


def detect_device(environ: Mapping[str, str], dev: Path = Path("/dev")) -> tuple[str, str]:
    """Return the device kind this process would run on (``npu``, ``cuda`` or ``cpu``) and the reason.

    This reads device nodes, installed distributions and the visible-device variables, because a query to torch would
    import it. On WSL, NVIDIA GPUs are reached through /dev/dxg.
    """
    npus = device_nodes("npu", dev)
    if npus and distribution_version("torch_npu"):
        if environ.get("ASCEND_RT_VISIBLE_DEVICES") != "":
            return "npu", f"{len(npus)} NPU device nodes, torch_npu installed"
        return "cpu", "ASCEND_RT_VISIBLE_DEVICES is empty"
    gpus = device_nodes("cuda", dev) or [path.name for path in (dev / "dxg",) if path.exists()]
    torch_version = distribution_version("torch") or ""
    if gpus and not torch_version.endswith("+cpu"):
        if environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
            return "cuda", f"{len(gpus)} NVIDIA device nodes"
        return "cpu", "CUDA_VISIBLE_DEVICES hides every GPU"
    if gpus:
        return "cpu", f"NVIDIA device nodes, but torch {torch_version} is a CPU build"
    if npus:
        return "cpu", "NPU device nodes, but torch_npu is not installed"
    return "cpu", "no NPU or GPU device nodes"


def device_to_use(asked: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the requested device kind and the reason. For None, "" and ``auto``, return the detected kind."""
    return detect_device(environ) if asked in (None, "", "auto") else (str(asked), "as requested")


def count_devices(kind: str, environ: Mapping[str, str], dev: Path = Path("/dev")) -> int:
    """Return how many devices of ``kind`` this process may use. A CPU counts as one device."""
    if kind == "cpu":
        return 1
    visible = environ.get(VISIBLE_DEVICES[kind])
    if visible is None:
        return len(device_nodes(kind, dev))
    listed = [word.strip() for word in visible.split(",")]
    # An invalid entry ends the list, as in CUDA and CANN.
    return next((index for index, word in enumerate(listed) if word in ("", "-1")), len(listed))


def torch_cuda() -> str:
    """Return the CUDA version that the installed torch is built with, from its version.py, or "" for none."""
    folder = root_folder("torch")
    file = folder / "torch" / "version.py" if folder is not None else None
    match = (
        re.search(r"(?m)^cuda\b[^=\n]*=\s*'([\d.]+)'", file.read_text())
        if file is not None and file.is_file()
        else None
    )
    return match[1] if match else ""


def processes_that_hold(file: Path) -> list[int]:
    """Return the ids of this host's processes that have ``file`` open. Only root sees other users' processes."""
    wanted, found = str(file.resolve()), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(descriptor) == wanted for descriptor in (folder / "fd").iterdir()):
                found.append(int(folder.name))
        except OSError:
            continue  # the process belongs to another user, or has ended meanwhile
    return sorted(found)


def distribution_version(name: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    return _version_on(name, tuple(sys.path))


@functools.cache
def _version_on(name: str, search_path: tuple[str, ...]) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def distributions() -> list[str]:
    """Return the names of all installed distributions."""
    return [name for one in importlib.metadata.distributions() if (name := one.metadata["Name"])]


def find_root(root: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a top-level package without importing it, or None if it cannot be found."""
    module = sys.modules.get(root)
    if module is not None:
        return getattr(module, "__spec__", None)
    try:
        return importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return None


def root_folder(module: str) -> Path | None:
    """Return the folder that holds the top-level package of a module, or None if it is not on disk.

    Of a namespace package with several folders, this is the folder that contains the module.
    """
    root, _, below = module.partition(".")
    spec = find_root(root)
    if spec is None:
        return None
    locations = [Path(location) for location in spec.submodule_search_locations or ()]
    if len(locations) > 1 and below:
        child = below.partition(".")[0]
        locations = [one for one in locations if (one / child).is_dir() or any(one.glob(f"{child}.*"))] or locations
    if locations:
        return locations[0].parent
    return Path(spec.origin).parent if spec.origin and spec.has_location else None


def owning_version(distribution: str, module: str) -> str | None:
    """Return the version of ``distribution`` if it is installed where the top-level package of ``module`` is found.

    A checkout earlier on sys.path does not belong to the installed distribution of the same name.
    """
    recorded = _recorded(distribution, tuple(sys.path))
    if recorded is None:
        return None
    version, home = recorded
    folder = root_folder(module)
    return version if folder is not None and folder.resolve() == home else None


@functools.cache
def _recorded(distribution: str, search_path: tuple[str, ...]) -> tuple[str, Path] | None:
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    return found.version, Path(str(found.locate_file(""))).resolve()
