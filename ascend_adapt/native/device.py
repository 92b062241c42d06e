"""Device operations of the trainer. No other module depends on the kind of device."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import time
from collections.abc import Callable, MutableMapping
from typing import Any

import torch

from ascend_adapt import probe, switches
from ascend_adapt.errors import SettingsError, TrainingError
from ascend_adapt.whole_numbers import of_variable

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
"""Collective communication backend of each kind of device."""

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""Environment variable: the sizes and numbers of cuBLAS's workspaces."""
_NO_WORKSPACE = ":0:0"


def of_this_rank(kind: str | None = None) -> torch.device:
    """Return the device of this rank, chosen by LOCAL_RANK, and make it the current device.

    The default ``kind`` is the one chosen by ``ascend-run --device`` (ASCEND_ADAPT_DEVICE), else the one that the host
    has.

    Raises:
        SettingsError: the kind is unknown, or torch finds no device of this kind.
    """
    kind, _ = probe.device_to_use(kind or os.environ.get("ASCEND_ADAPT_DEVICE"), os.environ)
    if kind not in BACKENDS:
        raise SettingsError(f"--device: {kind}, expected auto or one of {', '.join(BACKENDS)} — correct it")
    if kind == "cpu":
        return torch.device("cpu")
    if kind == "npu":
        try:
            importlib.import_module("torch_npu")
        except ModuleNotFoundError as error:
            if error.name != "torch_npu":
                raise
            raise SettingsError(
                "--device npu: torch_npu is not installed, expected the version that matches this torch — run "
                "ascend-adapt doctor"
            ) from error
    if not getattr(torch, kind).is_available():
        raise SettingsError(
            f"--device {kind}: torch {torch.__version__} finds no such device, expected one — use --device cpu, or run "
            f"ascend-adapt doctor --device {kind}"
        )
    device = torch.device(kind, of_variable(os.environ, "LOCAL_RANK", 0))
    _module(device).set_device(device)
    return device


def backend(device: torch.device) -> str:
    """Return the torch.distributed backend; for an accelerator it includes gloo, for offloading to host memory."""
    own = BACKENDS[device.type]
    return own if device.type == "cpu" else f"cpu:gloo,{device.type}:{own}"


def name(device: torch.device) -> str:
    """Return the device's name, such as "NVIDIA H100 80GB HBM3", or "cpu"."""
    return "cpu" if device.type == "cpu" else str(_module(device).get_device_name(device))


def set_deterministic(environ: MutableMapping[str, str]) -> None:
    """Turn on torch's deterministic algorithms if ``ascend-run --deterministic`` requests it.

    The variable for cuBLAS is also set here, for runs that set ASCEND_ADAPT_DETERMINISTIC without ascend-run.
    """
    if switches.is_on(environ, "ASCEND_ADAPT_DETERMINISTIC"):
        # Not warn_only: flash attention's gradients would not be deterministic.
        torch.use_deterministic_algorithms(True)
        # Without this variable torch raises an error at every matrix product on a GPU. An earlier run in this process
        # may have turned the workspace off.
        if environ.get(WORKSPACE, "") in ("", _NO_WORKSPACE):
            environ[WORKSPACE] = ":4096:8"
        # Filling adds a kernel to every torch.empty; nothing here reads uninitialized memory.
        torch.utils.deterministic.fill_uninitialized_memory = False


def schedule_matmuls_statically(device: torch.device, environ: MutableMapping[str, str]) -> None:
    """Make cuBLAS assign the tiles of a matmul to multiprocessors in advance, on GPUs of compute capability 9.0.

    With a workspace, cuBLAS counts tiles in it and clears the counter before each matmul, which makes GPT-2 345M 3 %
    slower on an H200. The user's settings are kept. torch reads the variables at the first matmul of the process.
    """
    if device.type == "cuda" and WORKSPACE not in environ and torch.cuda.get_device_capability(device) == (9, 0):
        environ[WORKSPACE] = _NO_WORKSPACE
        environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "0")


def of_counters(device: torch.device) -> torch.device:
    """Return the device for the step counters of parameters on ``device``: the NPU's operator reads them on the CPU."""
    return torch.device("cpu") if device.type == "npu" else device


def rng_state(device: torch.device) -> torch.Tensor:
    """Return the RNG state of the device's default generator."""
    state: torch.Tensor = torch.get_rng_state() if device.type == "cpu" else _module(device).get_rng_state(device)
    return state


def set_rng_state(device: torch.device, state: torch.Tensor) -> None:
    """Set the RNG state of the device's default generator."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        _module(device).set_rng_state(state, device)


def seed(device: torch.device, number: int) -> None:
    """Seed the device's default generator, and no other."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(number)
    else:
        _module(device).manual_seed(number)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a host tensor on the device. It is copied from pinned memory, so the host does not wait for the copy."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory of tensors on the device so far, in bytes; None on a CPU."""
    return None if device.type == "cpu" else int(_module(device).max_memory_allocated(device))


def take_overflow(device: torch.device) -> bool:
    """Return and clear the overflow flag of a device that saturates; other devices show an overflow as Inf or NaN.

    An Ascend 910A produces neither: an overflow gives the largest finite value and sets a flag.
    """
    if not _saturates(device):
        return False
    utils = importlib.import_module("torch_npu.npu.utils")
    raised = bool(utils.get_npu_overflow_flag())
    if raised:
        utils.clear_npu_overflow_flag()
    return raised


def profiler(device: torch.device) -> Any:
    """Return a profiler of host and device that is not started yet: torch's, or torch_npu's on an NPU.

    Raises:
        RuntimeError: the device is emulated.
    """
    if device.type == "npu":
        if os.environ.get("ASCEND_ADAPT_EMULATED"):
            raise RuntimeError("an emulated NPU has no profiler (aclprofInit)")
        module: Any = importlib.import_module("torch_npu.profiler")
        activities = [module.ProfilerActivity.CPU, module.ProfilerActivity.NPU]
    else:
        module = torch.profiler
        activities = [module.ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(module.ProfilerActivity.CUDA)
    return module.profile(activities=activities)


def tokens_between_waits(device: torch.device) -> int:
    """Return how many tokens are generated before the host reads them: one on a CPU, which runs synchronously."""
    return 1 if device.type == "cpu" else 16


def has_graphs(device: torch.device) -> bool:
    """Return whether ``recorded`` can record operations; torch_npu's graphs are untested."""
    return bool(device.type == "cuda")


def recorded(launch: Callable[[], None]) -> Callable[[], None]:
    """Record the operations of ``launch`` as a CUDA graph without running them; return a function that replays it.

    ``launch`` must have run before, so that libraries are initialised and kernels chosen, and must not wait for the
    device.
    """
    graph = torch.cuda.CUDAGraph()
    # torch keeps one workspace of cuBLAS for each stream. One left from an earlier recording would lie in
    # that recording's memory, which torch frees with it. The replay would then access unmapped memory.
    torch._C._cuda_clearCublasWorkspaces()
    # Other threads, such as a profiler's, may call CUDA meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        launch()
    torch._C._cuda_clearCublasWorkspaces()
    replay: Callable[[], None] = graph.replay
    return replay


def check_compiler(device: torch.device) -> None:
    """Check that torch.compile has a compiler for the device.

    Raises:
        TrainingError: there is no compiler; the message has the reason.
    """
    missing = ""
    if device.type == "cpu":
        compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
        if not any(map(shutil.which, compilers)):
            missing = f"{compilers[0]} is missing, expected a C++ compiler"
    elif device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            missing = "triton is not installed, expected it with a CUDA build of torch"
    else:
        missing = "the native trainer does not use torch_npu's compilers, expected a CPU or a GPU"
    if missing:
        raise TrainingError(f"--compile on {device.type}: {missing} — leave --compile out")


def moment(device: torch.device) -> Any:
    """Return a timing event recorded on the device, without synchronizing; on a CPU, the clock's time in seconds."""
    if device.type == "cpu":
        return time.perf_counter()
    event = _module(device).Event(enable_timing=True)
    event.record()
    return event


def seconds_between(first: Any, second: Any) -> float:
    """Return the seconds between two events that the device has completed."""
    return second - first if isinstance(first, float) else float(first.elapsed_time(second)) / 1e3


@functools.cache
def _saturates(device: torch.device) -> bool:
    return device.type == "npu" and not importlib.import_module("torch_npu.npu.utils").is_support_inf_nan()


def _module(device: torch.device) -> Any:
    return getattr(torch, device.type)
