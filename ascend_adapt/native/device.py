"""All that the trainer asks of a device, so that nothing else in it names one."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import time
from collections.abc import MutableMapping
from typing import Any

import torch

from ascend_adapt import probe
from ascend_adapt.errors import TrainingError

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
"""The collectives of each kind of device."""


def of_this_rank() -> torch.device:
    """Return the device of this rank, by LOCAL_RANK, and make it the current one.

    Its kind is the one that ``ascend-run --device`` chose (ASCEND_ADAPT_DEVICE), else what this machine has.
    """
    kind, _ = probe.device_to_use(os.environ.get("ASCEND_ADAPT_DEVICE"), os.environ)
    if kind == "cpu":
        return torch.device("cpu")
    if kind == "npu":
        importlib.import_module("torch_npu")
    device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
    _module(device).set_device(device)
    return device


def backend(device: torch.device) -> str:
    """Return the backend of torch.distributed; beside an accelerator's also one for host memory, for offloading."""
    own = BACKENDS[device.type]
    return own if device.type == "cpu" else f"cpu:gloo,{device.type}:{own}"


def name(device: torch.device) -> str:
    """Return what the device calls itself, such as "NVIDIA H100 80GB HBM3"; "cpu" of a CPU."""
    return "cpu" if device.type == "cpu" else str(_module(device).get_device_name(device))


def repeat_if_told(environ: MutableMapping[str, str]) -> None:
    """Make torch choose operations that repeat, and refuse others, where ``ascend-run --deterministic`` asks.

    What that also sets for cuBLAS is set here for those who have set the variable themselves.
    """
    if environ.get("ASCEND_ADAPT_DETERMINISTIC", "0") != "0":
        # Not warn_only: by that, flash attention's gradients do not repeat.
        torch.use_deterministic_algorithms(True)
        # Without it torch refuses every matrix product on a GPU.
        environ["CUBLAS_WORKSPACE_CONFIG"] = environ.get("CUBLAS_WORKSPACE_CONFIG") or ":4096:8"
        # A kernel for every torch.empty; nothing here reads what it has not written.
        torch.utils.deterministic.fill_uninitialized_memory = False


def of_counters(device: torch.device) -> torch.device:
    """Return where step counters of parameters on ``device`` belong: beside them, but an NPU's operator reads them."""
    return torch.device("cpu") if device.type == "npu" else device


def rng_state(device: torch.device) -> torch.Tensor:
    """Return the state of the device's default generator."""
    state: torch.Tensor = torch.get_rng_state() if device.type == "cpu" else _module(device).get_rng_state(device)
    return state


def set_rng_state(device: torch.device, state: torch.Tensor) -> None:
    """Put the device's default generator into that state."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        _module(device).set_rng_state(state, device)


def seed(device: torch.device, number: int) -> None:
    """Start the device's default generator anew, and no other."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(number)
    else:
        _module(device).manual_seed(number)


def take_overflow(device: torch.device) -> bool:
    """Return whether a device that saturates has overflowed since it was last asked; others show it by Inf and NaN.

    An Ascend 910A has neither: a result that is too large is the largest number, and a flag is raised.
    """
    if not _saturates(device):
        return False
    utils = importlib.import_module("torch_npu.npu.utils")
    raised = bool(utils.get_npu_overflow_flag())
    if raised:
        utils.clear_npu_overflow_flag()
    return raised


def profiler(device: torch.device) -> Any:
    """Return a profiler of the host and of the device, not started: torch's own, or torch_npu's.

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


def check_compiler(device: torch.device) -> None:
    """Check that torch.compile makes code for the device here.

    Raises:
        TrainingError: it does not, and why.
    """
    missing = ""
    if device.type == "cpu":
        compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
        if not any(map(shutil.which, compilers)):
            missing = f"{compilers[0]} is missing, expected a C++ compiler"
    elif device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            missing = "triton is not installed, expected it beside a torch for CUDA"
    else:
        missing = "torch_npu's compilers are not used here, expected a CPU or a GPU"
    if missing:
        raise TrainingError(f"--compile on {device.type}: {missing} — leave --compile out")


def moment(device: torch.device) -> Any:
    """Return this moment of the device's work, without waiting for it; on a CPU it is the clock's."""
    if device.type == "cpu":
        return time.perf_counter()
    event = _module(device).Event(enable_timing=True)
    event.record()
    return event


def seconds_between(first: Any, second: Any) -> float:
    """Return the seconds between two moments that the device has come past."""
    return second - first if isinstance(first, float) else float(first.elapsed_time(second)) / 1e3


@functools.cache
def _saturates(device: torch.device) -> bool:
    return device.type == "npu" and not importlib.import_module("torch_npu.npu.utils").is_support_inf_nan()


def _module(device: torch.device) -> Any:
    return getattr(torch, device.type)
