"""CUDA code's view of torch on an NPU, beyond torch_npu's transfer_to_npu."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.cuda.nccl

from . import _graphs
from ._tensor_type import set_on_npu
from .callers import Callers
from .capabilities import ALLOCATOR, BACKENDS, CAPABILITY, CUDNN, MEASUREMENTS, NCCL, PROPERTIES, VERSION
from .compilation import run_eagerly
from .devices_of_torch import npu
from .profiling import NoAverages, no_marks, returning


def torch_on_npu(callers: Callers) -> list[tuple[ModuleType, dict[str, Any]]]:
    """Return the modules of torch with the names that differ for CUDA code after the transfer."""
    scaler, profile = {"GradScaler": _GradScaler}, _profile()
    # A real NPU captures graphs itself.
    names = _graphs.REPLAYED if "ASCEND_ADAPT_EMULATED" in os.environ else ("make_graphed_callables",)
    graphs = {name: _graphs.REPLAYED[name] for name in names}
    return [
        (
            torch,
            {
                "compile": run_eagerly(torch.compile),
                "set_default_tensor_type": _set_default_tensor_type(callers),
                "asarray": _asarray,
                # The memory format does not change results, and NPUs only accept torch's default order.
                "channels_last": torch.contiguous_format,
                "channels_last_3d": torch.contiguous_format,
                **scaler,
            },
        ),
        (torch.amp, scaler),
        # Device-agnostic programs compare the type of the accelerator with "cuda".
        (torch.accelerator, {"current_accelerator": lambda check_available=False: torch.device("cuda")}),
        (torch.distributed, {"get_default_backend_for_device": _default_backend, "get_backend": _backend}),
        (torch.autograd.profiler, {"emit_nvtx": no_marks, "profile": _old_profile(profile)}),
        (torch.profiler, {"profile": profile}),
        (torch.backends.cudnn, CUDNN),
        (torch.backends.cuda, BACKENDS),
        (
            torch.cuda,
            {
                **MEASUREMENTS,
                **ALLOCATOR,
                "check_error": returning(None),
                "get_device_capability": returning(CAPABILITY),
                "get_device_properties": _properties,
                "is_bf16_supported": returning(True),
                "is_tf32_supported": returning(True),
                **graphs,
                "_lazy_init": torch.npu._lazy_init,
                "init": torch.npu.init,
            },
        ),
        (torch.cuda.amp, {"GradScaler": torch.npu.amp.GradScaler}),
        (torch.cuda.nccl, NCCL),
        (torch.version, VERSION),
        (torch.cuda.random, {}),
        (torch.cuda.memory, ALLOCATOR),
        # transfer_to_npu replaces these names in torch.cuda only.
        (torch.cuda.streams, {name: getattr(torch.cuda, name) for name in ("Stream", "Event", "ExternalStream")}),
        (torch.cuda.graphs, {**graphs, "is_current_stream_capturing": torch.cuda.is_current_stream_capturing}),
    ]


@functools.wraps(torch.asarray)
def _asarray(*args: Any, device: Any = None, **kwargs: Any) -> Any:
    """Create the tensor on the NPU for "cuda"; transfer_to_npu leaves this function out."""
    return torch.asarray(*args, device=npu(device), **kwargs)


def _default_backend(device: Any) -> str:
    """Return hccl as the default backend of "cuda", too."""
    of_device = torch.distributed.distributed_c10d.get_default_backend_for_device
    return of_device(str(device).replace("cuda", "npu"))  # type: ignore[no-any-return]


def _backend(group: Any = None) -> Any:
    """Return nccl for hccl, because scripts choose the device of their tensors by the backend."""
    backend = torch.distributed.distributed_c10d.get_backend(group)
    return torch.distributed.Backend.NCCL if backend == "hccl" else backend


def _set_default_tensor_type(callers: Callers) -> Callable[[Any], None]:
    @functools.wraps(torch.set_default_tensor_type)
    def set_default_tensor_type(t: Any) -> None:
        """Set the default dtype, and the NPU or the host as default device, because torch has no type for an NPU."""
        name = t if isinstance(t, str) else f"{t.__module__}.{t.__name__}"
        torch.set_default_dtype(getattr(torch, name.rpartition(".")[2]).dtype)
        is_on_npu = name.startswith(("torch.cuda.", "torch.npu."))
        torch.set_default_device("npu" if is_on_npu else None)
        set_on_npu(callers, is_on_npu)

    return set_default_tensor_type


def _profile() -> Any:
    """Return torch_npu's profiler, extended by the methods of torch's profiler that it lacks."""
    import torch_npu

    class Profile(torch_npu.profiler.profile):  # type: ignore[misc]
        def __init__(self, *args: Any, experimental_config: Any = None, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)  # torch's experimental_config is for CUDA.

        def key_averages(self, *args: Any, **kwargs: Any) -> NoAverages:
            return NoAverages()

        events = key_averages

    return Profile


def _old_profile(profile: Any) -> Any:
    """Return a torch.autograd.profiler.profile that ignores ``use_cuda``, ``use_device`` and similar options."""

    class Profile(profile):  # type: ignore[misc]
        def __init__(self, enabled: bool = True, *, record_shapes: bool = False, **options: Any) -> None:
            super().__init__(record_shapes=record_shapes)
            self._enabled = enabled

        def __enter__(self) -> Any:
            return super().__enter__() if self._enabled else self

        def __exit__(self, *error: Any) -> None:
            if self._enabled:
                super().__exit__(*error)

    return Profile


class _GradScaler(torch.npu.amp.GradScaler):  # type: ignore[misc]
    """Gradient scaler on the NPU instead of "cuda"."""

    def __init__(self, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class _Properties:
    """Device properties of an NPU, extended by the fields that only CUDA devices have."""

    major, minor = CAPABILITY

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        if name in PROPERTIES:
            return getattr(self._real, name, None) or PROPERTIES[name]
        return getattr(self._real, name)

    def __repr__(self) -> str:
        return repr(self._real)

    @property
    def multi_processor_count(self) -> int:
        """Number of cube cores, the AI cores that multiply matrices."""
        return int(getattr(self._real, "cube_core_num", 0))


@functools.wraps(torch.npu.get_device_properties)
def _properties(device: Any = None) -> _Properties:
    return _Properties(torch.cuda.get_device_properties(device))
