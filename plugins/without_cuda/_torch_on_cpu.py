"""CUDA code's view of torch on a CPU, with a ``torch.cuda`` whose only device is this host."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.cuda.nccl

from ascend_adapt.whole_numbers import of_variable

from ..deepspeed_runtime.accelerators import HostEvent, HostStream
from . import _graphs, profiling
from ._loading_and_autocast import AMP, AMP_OF_CUDA, TORCH, Generator
from .capabilities import ALLOCATOR, BACKENDS, CAPABILITY, CUDNN, MEASUREMENTS, NCCL, PROPERTIES, VERSION
from .compilation import run_eagerly
from .profiling import returning


def torch_on_cpu() -> list[tuple[ModuleType, dict[str, Any]]]:
    """Return the modules of torch with the names that differ for CUDA code."""
    random, memory = _random(), _memory()
    cuda = {**_cuda(), **random, **memory, **_graphs.REPLAYED}
    return [
        (torch, {**TORCH, "Generator": Generator, "compile": run_eagerly(torch.compile)}),
        (torch.accelerator, _accelerator(cuda)),
        (torch.amp, AMP),
        (torch.distributed, {"is_nccl_available": _true, "ProcessGroupNCCL": ProcessGroupNCCL}),
        (torch.cuda, cuda),
        (torch.cuda.amp, AMP_OF_CUDA),
        (torch.cuda.nccl, NCCL),
        (torch.version, VERSION),
        (torch.cuda.random, random),
        (torch.cuda.memory, {**memory, **profiling.NO_HISTORY}),
        (torch.cuda.graphs, {**_graphs.REPLAYED, "is_current_stream_capturing": cuda["is_current_stream_capturing"]}),
        (torch.cuda.streams, {name: cuda[name] for name in ("Stream", "ExternalStream", "Event")}),
        (torch.autograd.profiler, {"emit_nvtx": profiling.no_marks}),
        (torch.cuda.nvtx, profiling.marks_of("nvtx")),
        (torch.cuda.profiler, profiling.marks_of("profiler")),
        (torch.nn.attention, {"sdpa_kernel": _with_any_backend(torch.nn.attention.sdpa_kernel)}),
        (torch.backends.cudnn, CUDNN),
        (torch.backends.cuda, {**BACKENDS, "sdp_kernel": lambda *args, **kwargs: contextlib.nullcontext()}),
    ]


_true = returning(True)
_PROPERTIES = SimpleNamespace(
    **PROPERTIES,
    name="cpu",
    multi_processor_count=os.cpu_count(),
    total_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
)


class Stream(HostStream, torch.Stream):  # type: ignore[misc]
    """The host's only stream, as an object that Tensor.record_stream accepts."""

    cuda_stream = priority = 0

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the stream of the host, because torch cannot create a stream without an accelerator."""
        return torch.Stream.__new__(cls, stream_id=0, device_index=0, device_type=0)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the only priority as the lowest and the highest one."""
        return 0, 0

    def __enter__(self) -> Stream:
        """Return this stream; work is never asynchronous."""
        return self

    def __exit__(self, *exception: Any) -> None:
        """Do nothing."""


class ProcessGroupNCCL:
    """NCCL's process group, of which only the options exist; gloo ignores them."""

    class Options:
        """Options that accept any attribute."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.config = SimpleNamespace()


def _cuda() -> dict[str, Any]:
    """Return the attributes of torch.cuda that a CPU can emulate; other attributes fail as they do without CUDA."""
    index = [of_variable(os.environ, "LOCAL_RANK", 0)]

    def set_device(device: Any) -> None:
        number = torch.device(device).index if isinstance(device, str) else getattr(device, "index", device)
        index[0] = index[0] if number is None else int(number)

    nothing = (
        "synchronize _lazy_init init ipc_collect set_sync_debug_mode set_stream current_blas_handle check_error _sleep"
    )
    types = "Byte Char Short Int Long Half Float Double BFloat16 Bool"
    return {
        **{name: returning(None) for name in nothing.split()},
        **{f"{name}Tensor": getattr(torch, f"{name}Tensor") for name in types.split()},
        **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported", "is_tf32_supported"), _true),
        "is_current_stream_capturing": returning(False),
        "can_device_access_peer": returning(False),
        "utilization": returning(0),
        **MEASUREMENTS,
        "get_sync_debug_mode": returning(0),
        "get_arch_list": returning([]),
        "get_gencode_flags": returning(""),
        "device_count": ranks_here,
        "current_device": lambda: index[0],
        "set_device": set_device,
        "device": lambda device: contextlib.nullcontext(),
        "device_of": lambda obj: contextlib.nullcontext(),
        "get_device_name": returning(_PROPERTIES.name),
        "get_device_capability": returning(CAPABILITY),
        "get_device_properties": returning(_PROPERTIES),
        "default_generators": _Generators(),
        "_lazy_call": lambda callable, **kwargs: callable(),
        "Stream": Stream,
        "ExternalStream": Stream,
        "Event": HostEvent,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "cudart": profiling.MARKS["cudart"],
    }


def _accelerator(cuda: dict[str, Any]) -> dict[str, Any]:
    """Return attributes for torch.accelerator, which has no device on a CPU; device-agnostic scripts get "cuda"."""
    same = (
        "is_available device_count synchronize set_stream current_stream empty_cache memory_stats memory_allocated "
        "max_memory_allocated memory_reserved max_memory_reserved reset_peak_memory_stats get_device_capability"
    )
    return {
        **{name: cuda[name] for name in same.split()},
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        **dict.fromkeys(("current_device_index", "current_device_idx"), cuda["current_device"]),
        **dict.fromkeys(("set_device_index", "set_device_idx"), cuda["set_device"]),
        "device_index": lambda device: contextlib.nullcontext(),
        "get_memory_info": cuda["mem_get_info"],
    }


def _random() -> dict[str, Any]:
    """Return the RNG functions; the host and its only device share one generator."""
    return {
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "seed": torch.seed,
        "seed_all": torch.seed,
        "initial_seed": torch.initial_seed,
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * ranks_here(),
        "set_rng_state": lambda new_state, device="cuda": torch.set_rng_state(new_state),
        "set_rng_state_all": lambda new_states: torch.set_rng_state(new_states[0]),
    }


def _memory() -> dict[str, Any]:
    """Return the memory functions, which report 0, because torch keeps no allocator statistics for host memory."""
    no_bytes = (
        "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached"
    )
    nothing = (
        "empty_cache reset_peak_memory_stats reset_accumulated_memory_stats reset_max_memory_allocated "
        "reset_max_memory_cached set_per_process_memory_fraction reset_peak_host_memory_stats "
        "reset_accumulated_host_memory_stats"
    )
    return {
        **{name: returning(0) for name in no_bytes.split()},
        **{name: returning(None) for name in nothing.split()},
        **ALLOCATOR,
        "memory_stats": lambda device=None: _Zeros(),
        "host_memory_stats": _Zeros,
        "get_per_process_memory_fraction": returning(1.0),
        "memory_summary": returning("host memory has no allocator statistics"),
        "memory_snapshot": lambda *args: [],
        "list_gpu_processes": returning("no processes are running"),
        "mem_get_info": lambda device=None: (
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"),
            _PROPERTIES.total_memory,
        ),
    }


class _Zeros(dict):  # type: ignore[type-arg]
    """Allocator statistics, all 0."""

    def __missing__(self, key: str) -> int:
        return 0


class _Generators:
    """The generators of all devices; each is the CPU's generator, because tensors are in host memory."""

    def __getitem__(self, index: Any) -> torch.Generator:
        return torch.default_generator

    def __len__(self) -> int:
        return ranks_here()


def ranks_here() -> int:
    """Return the number of ranks on this host, each of which has a "device". DeepSpeed sets LOCAL_SIZE."""
    return of_variable(os.environ, "LOCAL_WORLD_SIZE", 0) or of_variable(os.environ, "LOCAL_SIZE", 1)


def _with_any_backend(sdpa_kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return an sdpa_kernel that also allows the math backend, because a CPU lacks some of the fused backends."""

    @functools.wraps(sdpa_kernel)
    @contextlib.contextmanager
    def call(backends: Any, set_priority: bool = False) -> Iterator[None]:
        chosen = [backends] if isinstance(backends, torch.nn.attention.SDPBackend) else list(backends)
        with sdpa_kernel([*chosen, torch.nn.attention.SDPBackend.MATH], set_priority):
            yield

    return call
