"""Accelerators for DeepSpeed releases that lack one for this device: CPU before 0.14.1, NPU before 0.10.1.

Before 0.14.1 DeepSpeed's CPU accelerator needs Intel's oneCCL bindings. 0.9.3 to 0.10.0 ship an NPU accelerator but
never select it. Before 0.8.1 the engine calls torch.cuda directly, so no accelerator helps.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import pkgutil
import time
from collections.abc import Callable
from typing import Any

from ascend_adapt import Call, Symptom, wrap
from ascend_adapt.whole_numbers import of_variable

TARGET = "deepspeed.accelerator.real_accelerator:get_accelerator"


@wrap(
    TARGET,
    requires="deepspeed>=0.8.1,<0.14.1",
    devices="cpu",
    why="the only accelerator is for CUDA, or the accelerator for CPUs needs Intel's oneCCL bindings",
    until="support for DeepSpeed 0.14.0 ends",
    without="crash",
    symptom=Symptom(reason="before 0.8.1 the fault is the same, and no accelerator helps"),
)
def cpu_accelerator(call: Call) -> Any:
    """Set ascend_adapt's CPU accelerator before DeepSpeed chooses one."""
    return _chosen("cpu", _cpu_methods, call)


@wrap(
    TARGET,
    requires="deepspeed>=0.8.1,<0.10.1",
    devices="npu",
    why="only the CUDA accelerator is ever selected",
    until="support for DeepSpeed 0.10.0 ends",
    without="crash",
    symptom=Symptom(reason="before 0.8.1 the fault is the same, and no accelerator helps"),
)
def npu_accelerator(call: Call) -> Any:
    """Set ascend_adapt's NPU accelerator before DeepSpeed chooses one."""
    return _chosen("npu", _npu_methods, call)


@wrap(
    "deepspeed.accelerator.cpu_accelerator:CPU_Accelerator.device_count",
    requires="deepspeed>=0.9.3",
    devices="cpu",
    why="it counts devices from LOCAL_SIZE, which only DeepSpeed's launcher sets; with other launchers it "
    "counts NUMA nodes with numactl, and before 0.16 it fails with FileNotFoundError if numactl is not "
    "installed",
    until="DeepSpeed also counts ranks under torchrun",
    without="crash",
    symptom=Symptom("int(os.environ.get('LOCAL_SIZE', 0))"),
)
def cpu_device_count(call: Call) -> Any:
    """Count one device per rank on this host, as with DeepSpeed's launcher."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE")
    if "LOCAL_SIZE" not in os.environ and ranks:
        return int(ranks)
    try:
        return call.proceed()
    except FileNotFoundError:
        return 1  # numactl is not installed; 0.16 and newer also return this value.


def _chosen(kind: str, methods: Callable[[], dict[str, Any]], call: Call) -> Any:
    from deepspeed.accelerator import real_accelerator

    if real_accelerator.ds_accelerator is None:
        real_accelerator.set_accelerator(_accelerator(kind, methods()))
    return call.proceed()


def _accelerator(kind: str, methods: dict[str, Any]) -> Any:
    """Return an instance of DeepSpeed's abstract accelerator with ``methods`` and the methods common to all devices."""
    import torch
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

    builders: dict[str, type] = {}

    def get_op_builder(self: Any, class_name: str) -> type | None:
        if not builders:
            builders.update(_op_builders())
        return builders.get(class_name)

    def create_op_builder(self: Any, class_name: str) -> Any:
        builder = get_op_builder(self, class_name)
        return builder() if builder is not None else None

    def build_extension(self: Any) -> Any:
        from torch.utils.cpp_extension import BuildExtension

        return BuildExtension

    shared = {
        "__doc__": f"A {kind.upper()} accelerator for a DeepSpeed release that has none.",
        "_name": kind,
        "random": lambda self: torch.random,
        "op_builder_dir": lambda self: "deepspeed.ops.op_builder",
        "get_op_builder": get_op_builder,
        "create_op_builder": create_op_builder,
        "build_extension": build_extension,
        "range_push": lambda self, msg: None,
        "range_pop": lambda self: None,
        "is_triton_supported": lambda self: False,
        "supported_dtypes": lambda self: [torch.float, torch.half, torch.bfloat16],
        "create_graph": lambda self: None,
        "capture_to_graph": lambda self, graph, pool=None, stream=None: contextlib.nullcontext(),
        "replay_graph": lambda self, graph: None,
        "is_bf16_supported": lambda self: True,
        "is_fp16_supported": lambda self: True,
        "use_host_timers": lambda self: self.is_synchronized_device(),
        "resolves_data_dependency": lambda self: self.is_synchronized_device(),
        "handles_memory_backpressure": lambda self: self.is_synchronized_device(),
        "on_accelerator": lambda self, tensor: tensor.device.type == kind,
        "communication_backend_name": lambda self: self._communication_backend_name,
    }
    # Its __init__ is abstract and only declares names.
    shared["__init__"] = lambda self: None
    made = type(f"{kind.upper()}_Accelerator", (DeepSpeedAccelerator,), {**shared, **methods})
    return made()


def _op_builders() -> dict[str, type]:
    """Return all concrete operator builders of the release by class name; the first module that defines one wins."""
    package = importlib.import_module("deepspeed.ops.op_builder")
    found: dict[str, type] = {}
    for _, name, is_package in pkgutil.iter_modules(package.__path__):
        if not is_package and name not in ("all_ops", "builder"):
            module = importlib.import_module(f"{package.__name__}.{name}")
            classes = {key: value for key, value in vars(module).items() if isinstance(value, type)}
            made = {key: value for key, value in classes.items() if not inspect.isabstract(value)}
            found = {**{key: value for key, value in made.items() if key.endswith("Builder")}, **found}
    return found


def _tensor_types(module: Any) -> dict[str, Any]:
    names = ("BFloat16", "Byte", "Double", "Float", "Half", "Int", "Long")

    def getter(name: str) -> property:
        return property(lambda self: getattr(module, name))

    return {f"{name}Tensor": getter(f"{name}Tensor") for name in names}


def _cpu_methods() -> dict[str, Any]:
    import torch

    nothing = dict.fromkeys(
        ("reset_max_memory_allocated", "reset_max_memory_cached", "reset_peak_memory_stats"),
        lambda self, device_index=None: None,
    )
    no_bytes = dict.fromkeys(
        (
            "memory_allocated",
            "max_memory_allocated",
            "memory_cached",
            "max_memory_cached",
            "memory_reserved",
            "max_memory_reserved",
        ),
        lambda self, device_index=None: 0,
    )

    def total_memory(self: Any, device_index: int | None = None) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    return {
        **nothing,
        **no_bytes,
        **_tensor_types(torch),
        "_communication_backend_name": "gloo",
        "is_synchronized_device": lambda self: True,
        "device_name": lambda self, device_index=None: "cpu",
        "device": lambda self, device_index=None: torch.device("cpu"),
        "set_device": lambda self, device_index: None,
        "current_device": lambda self: of_variable(os.environ, "LOCAL_RANK", 0),
        "current_device_name": lambda self: "cpu",
        "device_count": lambda self: of_variable(os.environ, "LOCAL_WORLD_SIZE", 1),
        "synchronize": lambda self, device_index=None: None,
        "set_rng_state": lambda self, new_state, device_index=None: torch.set_rng_state(new_state),
        "get_rng_state": lambda self, device_index=None: torch.get_rng_state(),
        "manual_seed": lambda self, seed: torch.manual_seed(seed),
        "manual_seed_all": lambda self, seed: torch.manual_seed(seed),
        "initial_seed": lambda self, seed=None: torch.initial_seed(),
        "default_generator": lambda self, device_index: torch.default_generator,
        "Stream": property(lambda self: HostStream),
        "StreamContext": property(lambda self: contextlib.nullcontext),
        "stream": lambda self, stream: contextlib.nullcontext(stream),
        "current_stream": lambda self, device_index=None: HostStream(),
        "default_stream": lambda self, device_index=None: HostStream(),
        "Event": property(lambda self: HostEvent),
        "empty_cache": lambda self: None,
        "memory_stats": lambda self, device_index=None: {},
        "total_memory": total_memory,
        "available_memory": total_memory,
        "amp": lambda self: torch.cpu.amp,
        "is_available": lambda self: True,
        "lazy_call": lambda self, callback: callback(),
        "pin_memory": lambda self, tensor, align_bytes=1: tensor,
        "is_pinned": lambda self, tensor: tensor.is_pinned(),
        "export_envs": lambda self: [],
    }


def _npu_methods() -> dict[str, Any]:
    import torch
    import torch_npu

    npu = torch_npu.npu

    def call(name: str) -> Callable[..., Any]:
        return lambda self, *args, **kwargs: getattr(npu, name)(*args, **kwargs)

    direct = (
        "set_device current_device device_count synchronize set_rng_state get_rng_state manual_seed manual_seed_all "
        "initial_seed device stream current_stream default_stream empty_cache memory_allocated max_memory_allocated "
        "reset_max_memory_allocated memory_cached max_memory_cached reset_max_memory_cached memory_stats "
        "reset_peak_memory_stats memory_reserved max_memory_reserved is_available"
    )

    def total_memory(self: Any, device_index: int | None = None) -> int:
        index = npu.current_device() if device_index is None else device_index
        return int(npu.get_device_properties(index).total_memory)

    return {
        **{name: call(name) for name in direct.split()},
        **_tensor_types(npu),
        "_communication_backend_name": "hccl",
        "is_synchronized_device": lambda self: False,
        "device_name": lambda self, device_index=None: "npu" if device_index is None else f"npu:{device_index}",
        "current_device_name": lambda self: f"npu:{npu.current_device()}",
        "default_generator": lambda self, device_index: npu.default_generators[device_index],
        "Stream": property(lambda self: npu.Stream),
        "StreamContext": property(lambda self: npu.StreamContext),
        "Event": property(lambda self: npu.Event),
        "total_memory": total_memory,
        "available_memory": lambda self, device_index=None: npu.mem_get_info(device_index)[0],
        "amp": lambda self: getattr(npu, "amp", None),
        "lazy_call": lambda self, callback: callback(),
        "pin_memory": lambda self, tensor, align_bytes=1: tensor.pin_memory(),
        "is_pinned": lambda self, tensor: tensor.is_pinned(),
        "export_envs": lambda self: ["ASCEND", "HCCL", "LD_LIBRARY", "PATH"],
        "random": lambda self: torch.random,
    }


@wrap(
    "deepspeed.accelerator.cpu_accelerator:CPU_Accelerator.Stream",
    name="cpu_streams",
    requires="deepspeed>=0.14.1",
    devices="cpu",
    why="DeepSpeed's CPU accelerator has no streams, so activation checkpointing (up to 0.19.5) and ZeRO-3 with "
    "overlap_comm fail with \"'NoneType' object is not callable\"",
    until="DeepSpeed checks whether its accelerator has streams before it creates one",
    without="crash",
    symptom=Symptom(reason="the fault is in the callers; before 0.14.1 the accelerator for CPUs is ours"),
)
def cpu_streams(call: Call) -> Any:
    """Return a stream class whose work is always complete."""
    return HostStream


class HostEvent:
    """Event of a synchronous device, which only records a time."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._at_s = time.perf_counter()

    def record(self, stream: Any = None) -> None:
        """Record the time."""
        self._at_s = time.perf_counter()

    def elapsed_time(self, end: HostEvent) -> float:
        """Return the milliseconds from this event to ``end``."""
        return (end._at_s - self._at_s) * 1e3

    def query(self) -> bool:
        """Return True: all work is complete."""
        return True

    def wait(self, stream: Any = None) -> None:
        """Return at once: all work is complete."""

    def synchronize(self) -> None:
        """Return at once: all work is complete."""


class HostStream:
    """The only stream of a synchronous device."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        """Return ``event`` or a new one, recorded now."""
        event = event or HostEvent()
        event.record()
        return event

    def query(self) -> bool:
        """Return True: all work is complete."""
        return True

    def wait_event(self, event: HostEvent) -> None:
        """Return at once: all work is complete."""

    def wait_stream(self, stream: HostStream) -> None:
        """Return at once: all work is complete."""

    def synchronize(self) -> None:
        """Return at once: all work is complete."""
