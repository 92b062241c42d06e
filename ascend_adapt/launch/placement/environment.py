"""Environment variables of a job's processes: those for the patches, and defaults that the user's values override."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ascend_adapt import probe, regular_files
from ascend_adapt.alignment import watch
from ascend_adapt.errors import LaunchError
from ascend_adapt.launch.cores import threads_per_rank
from ascend_adapt.launch.placement import network
from ascend_adapt.launch.request import Request
from ascend_adapt.whole_numbers import whole_number

if TYPE_CHECKING:
    from ascend_adapt.emulation.environment import Emulation

BOOTSTRAP = str(Path(__file__).parents[1] / "bootstrap")
SWITCHED_OFF = {"ASCEND_ADAPT": "0"}
ALLOCATOR_SETTINGS = ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

COMPILE_MODE = "ASCEND_ADAPT_NPU_COMPILE_MODE"
STANDARD_LIBRARY = frozenset(sys.stdlib_module_names)

_FORWARDED = ("LD_LIBRARY_PATH", "PATH")
_FORWARDED_PREFIXES = ("ASCEND_", "HCCL_", "NCCL_", "OMP_", "PYTHON")
OF_ONE_PROCESS = (
    "ASCEND_ADAPT_RANK_PID",
    "ASCEND_ADAPT_INITIALIZED_RANK",
    "ASCEND_ADAPT_PROGRAM",
    "ASCEND_ADAPT_PROGRESS_FD",
    "ASCEND_ADAPT_CUDA_CODE_PRINTED",
)
"""Variables inherited if an adapted process (such as a rank) started this launcher; the job does not inherit them."""
OF_ANOTHER_JOB = (*OF_ONE_PROCESS, "ASCEND_ADAPT_JOB", "ASCEND_ADAPT_RUN_DIR")
"""Variables that belong to the process or job in which this launcher runs."""


def of_patches(request: Request, device: str, targets: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make every Python process of the job adapt itself.

    ``targets`` are the top-level modules that have patches.
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
        **({"ASCEND_ADAPT_NUMERICS": request.numerics} if request.numerics else {}),
        **({"ASCEND_ADAPT_CUDA_CODE": request.cuda_code} if request.cuda_code else {}),
        **(_repeatable(environ) if request.deterministic else {}),
        **({COMPILE_MODE: request.npu_compile_mode} if request.npu_compile_mode != "keep" else {}),
    }


def of_recording(request: Request, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for ``--record``, which works with or without patches."""
    if request.record is None:
        return {}
    chosen = {watch.STEPS: request.record_steps, watch.RANKS: request.record_ranks, watch.INPUTS: request.record_inputs}
    return {
        "PYTHONPATH": python_path(environ.get("PYTHONPATH", "")),
        watch.FOLDER: os.path.abspath(request.record),
        **{name: value for name, value in chosen.items() if value is not None},
    }


def _repeatable(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for deterministic kernels; cuBLAS also needs a fixed workspace."""
    return {
        "ASCEND_ADAPT_DETERMINISTIC": "1",
        "CUBLAS_WORKSPACE_CONFIG": environ.get("CUBLAS_WORKSPACE_CONFIG") or ":4096:8",
    }


def python_path(users: str) -> str:
    """Return PYTHONPATH with the bootstrap first, and without empty elements, which would mean the current folder."""
    return os.pathsep.join([BOOTSTRAP, *(entry for entry in users.split(os.pathsep) if entry not in ("", BOOTSTRAP))])


def of_emulation(emulation: Emulation, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give every Python process of the job an emulated NPU, with or without patches."""
    return {
        **emulation.variables(environ),
        "PYTHONPATH": emulation.python_path(python_path(environ.get("PYTHONPATH", ""))),
    }


def visible_npus(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the visible NPUs; they are taken from CUDA_VISIBLE_DEVICES if the user has set only that variable."""
    if "ASCEND_RT_VISIBLE_DEVICES" in environ or "CUDA_VISIBLE_DEVICES" not in environ:
        return {}
    return {"ASCEND_RT_VISIBLE_DEVICES": environ["CUDA_VISIBLE_DEVICES"]}


def of_device(
    device: str, run_dir: str, hccl_base_port: int | None, environ: Mapping[str, str], nodes: int = 1
) -> dict[str, str]:
    """Return the default variables for one kind of device on ``nodes`` hosts, without those that the user has set.

    GPUs are hidden from a CPU job even if the user has set variables, because accelerate uses any visible GPU.

    ``hccl_base_port`` is None if each host chooses its base port.

    The values come from the Ascend documentation's list of environment variables; they were not tested on an NPU.
    """
    if device != "npu":
        return {**_without_cann(environ), **(_without_gpus(environ) if device == "cpu" else {})}
    defaults = {
        # HCCL waits 120 s by default, but loading a large checkpoint on one rank takes longer. Its maximum is 7200 s.
        "HCCL_CONNECT_TIMEOUT": str(min(1200 + 10 * (nodes - 1), 7200)),
        "HCCL_WHITELIST_DISABLE": "1",
        "ASCEND_PROCESS_LOG_PATH": os.path.join(run_dir, "npu-logs"),
        # Megatron asserts this value on every device.
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    if hccl_base_port is not None:
        defaults["HCCL_IF_BASE_PORT"] = str(hccl_base_port)
    defaults.update(visible_npus(environ))
    return {name: value for name, value in defaults.items() if name not in environ}


def _without_cann(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that stops `import torch` from loading torch_npu, if that import would fail without CANN."""
    name = "TORCH_DEVICE_BACKEND_AUTOLOAD"
    if name in environ or environ.get("ASCEND_HOME_PATH") or probe.find_root("torch_npu") is None:
        return {}
    return {name: "0"}


def _without_gpus(environ: Mapping[str, str]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ""} if probe.count_devices("cuda", environ) else {}


def check_exported(environ: Mapping[str, str], export: Sequence[str]) -> None:
    """Check that the variables of ``--export`` are set.

    Raises:
        LaunchError: some variables are not set.
    """
    if missing := [name for name in export if name not in environ]:
        raise LaunchError(f"--export {', '.join(missing)}: not set here, expected variables to forward — set them")


def forwarded(environ: Mapping[str, str], export: Sequence[str]) -> dict[str, str]:
    """Return the launcher's variables that are forwarded to other hosts.

    Raises:
        LaunchError: a variable named by --export is not set.
    """
    check_exported(environ, export)
    return {
        name: value
        for name, value in environ.items()
        if (name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES) or name in export) and name not in OF_ANOTHER_JOB
    }


def of_deepspeed_env(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables that ``.deepspeed_env`` sets; DeepSpeed's launcher reads it in the home, then in ``folder``.

    Raises:
        LaunchError: a file cannot be read, or a line is not of the form NAME=value.
    """
    name = environ.get("DS_ENV_FILE", ".deepspeed_env")
    variables: dict[str, str] = {}
    for path in dict.fromkeys((Path(environ.get("HOME", "~")).expanduser() / name, folder / name)):
        if not path.is_file():
            continue
        try:
            text = os.fsdecode(regular_files.read_bytes(path))
        except OSError as error:
            raise LaunchError(f"{path}: {error.strerror}, expected a readable file — correct it") from error
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            key, equals, value = line.partition("=")
            if not equals or not key.strip():
                raise LaunchError(f"{path}: line {number} is {key!r}, expected NAME=value — correct it")
            variables[key.strip()] = value
    return variables


def of_host(device: str, towards: str, hccl_base_port: int, nproc: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults of one of several hosts, as detected on it; ``towards`` is another one of these hosts.

    Libraries that choose a network interface themselves often choose the container runtime's bridge, or loopback.
    """
    defaults = {"OMP_NUM_THREADS": str(threads_per_rank(nproc))}
    address = network.address_towards(towards)
    interface = network.interface_of(address) if address else None
    if interface:
        defaults.update(dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), interface))
        if device == "cuda":
            defaults["NCCL_SOCKET_IFNAME"] = f"={interface}"
    if device == "npu":
        defaults["HCCL_IF_BASE_PORT"] = str(hccl_base_port)
        if address and "HCCL_SOCKET_IFNAME" not in environ:
            defaults["HCCL_IF_IP"] = address
    return {name: value for name, value in defaults.items() if name not in environ}


def warnings(device: str, environ: Mapping[str, str], nodes: int) -> list[str]:
    """Return warnings about the user's own variables.

    Raises:
        LaunchError: the job would fail with these variables.
    """
    if device == "npu" and all(environ.get(name) for name in ALLOCATOR_SETTINGS):
        raise LaunchError(
            f"{' and '.join(ALLOCATOR_SETTINGS)}: both are set, but torch_npu accepts only one — unset one"
        )
    found = []
    wait, minutes = map(whole_number, (environ.get("HCCL_EXEC_TIMEOUT"), environ.get("DEEPSPEED_TIMEOUT", "30")))
    if device == "npu" and wait is not None and minutes is not None and wait != 60 * minutes:
        found.append(
            f"HCCL_EXEC_TIMEOUT={wait} s, but the process group waits {60 * minutes} s unless the script "
            "sets another timeout: the shorter one ends the job — make them equal"
        )
    if nodes > 1 and environ.get("HCCL_IF_IP"):
        found.append(
            f"HCCL_IF_IP={environ['HCCL_IF_IP']} would be set on {nodes} hosts, but each has its own address — unset it"
        )
    return found
