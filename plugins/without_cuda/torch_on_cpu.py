"""A ``torch`` for one code base: the real one, except that ``cuda`` is the CPU of this host."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from ..deepspeed_runtime.accelerators import HostEvent, HostStream
from . import profiling
from .loading_and_autocast import AMP, AMP_OF_CUDA, TORCH
from .profiling import returning


class _Proxy(ModuleType):
    """A module with the names ``own``, and all others of the real one."""

    def __init__(self, real: ModuleType, own: dict[str, Any]) -> None:
        super().__init__(real.__name__, real.__doc__)
        vars(self).update(own)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._real), *vars(self)})


@functools.cache
def torch_on_cpu() -> list[tuple[Any, Any]]:
    """Return pairs of each replaced module, function and class of torch and its replacement."""
    amp_of_cuda = _Proxy(torch.cuda.amp, AMP_OF_CUDA)
    cuda, distributed = _Proxy(torch.cuda, {**_cuda(), "amp": amp_of_cuda}), _Proxy(torch.distributed, _distributed())
    amp = _Proxy(torch.amp, AMP)
    proxies = [_Proxy(torch, {**TORCH, "cuda": cuda, "distributed": distributed, "amp": amp})]
    proxies += [cuda, distributed, amp, amp_of_cuda]
    pairs = [(proxy._real, proxy) for proxy in proxies]
    for proxy in proxies:
        real = vars(proxy._real)
        pairs += [(real[name], value) for name, value in vars(proxy).items() if callable(real.get(name))]
    return pairs


def _cuda() -> dict[str, Any]:
    """Return the names of torch.cuda that a CPU can serve; others fail as they do without CUDA."""
    index = [int(os.environ.get("LOCAL_RANK", "0"))]

    def set_device(device: Any) -> None:
        number = torch.device(device).index if isinstance(device, str) else getattr(device, "index", device)
        index[0] = index[0] if number is None else int(number)

    no_bytes = (
        "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached"
    )
    nothing = (
        "synchronize empty_cache reset_peak_memory_stats reset_max_memory_allocated reset_max_memory_cached "
        "_lazy_init init ipc_collect"
    )
    random: dict[str, Any] = {
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "seed": torch.seed,
        "seed_all": torch.seed,
        "initial_seed": torch.initial_seed,
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda new_state, device="cuda": torch.set_rng_state(new_state),
    }
    types = "Byte Char Short Int Long Half Float Double BFloat16 Bool"
    return {
        **{name: returning(0) for name in no_bytes.split()},
        **{name: returning(None) for name in nothing.split()},
        **{f"{name}Tensor": getattr(torch, f"{name}Tensor") for name in types.split()},
        "is_available": returning(True),
        "is_initialized": returning(True),
        "is_bf16_supported": returning(True),
        "device_count": _ranks_here,
        "current_device": lambda: index[0],
        "set_device": set_device,
        "device": lambda device: contextlib.nullcontext(),
        "get_device_name": returning("cpu"),
        # 8.0 is the first with bf16.
        "get_device_capability": returning((8, 0)),
        "get_device_properties": returning(SimpleNamespace(name="cpu", major=8, minor=0, total_memory=_host_memory())),
        **random,
        "random": _Proxy(torch.cuda.random, random),
        "default_generators": _Generators(),
        "_lazy_call": lambda callable, **kwargs: callable(),
        "Stream": HostStream,
        "Event": HostEvent,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device=None: HostStream(),
        "default_stream": lambda device=None: HostStream(),
        **{name: _Proxy(getattr(torch.cuda, name), profiling.marks_of(name)) for name in ("nvtx", "profiler")},
        "cudart": profiling.MARKS["cudart"],
        "memory": _Proxy(torch.cuda.memory, profiling.NO_HISTORY),
    }


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _Generators:
    """The RNGs of all devices: tensors are in host memory, so all are the CPU's generator."""

    def __getitem__(self, index: Any) -> torch.Generator:
        return torch.default_generator

    def __len__(self) -> int:
        return _ranks_here()


def _ranks_here() -> int:
    """Return the number of ranks on this host: each has a "device". DeepSpeed sets LOCAL_SIZE."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)


def _distributed() -> dict[str, Any]:
    """Return the functions of torch.distributed that take a backend."""

    def with_gloo(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            args = tuple("gloo" if isinstance(arg, str) and arg == "nccl" else arg for arg in args)
            if kwargs.get("backend") in ("nccl", "hccl"):
                kwargs["backend"] = "gloo"
            return function(*args, **kwargs)

        return call

    names = ("init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration")
    return {name: with_gloo(getattr(torch.distributed, name)) for name in names}
