"""CUDA code's view of torch on an NPU, for what torch_npu's transfer_to_npu does not cover."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from . import graphs
from .compilation import run_eagerly
from .profiling import returning

# 8.0 is the first compute capability with bf16, and below every shortcut for Hopper and Blackwell.
_MAJOR, _MINOR = 8, 0


def torch_on_npu() -> list[tuple[ModuleType, dict[str, Any]]]:
    """Return the modules of torch with the names that CUDA code sees differently after the transfer."""
    scaler = {"GradScaler": _GradScaler}
    return [
        (torch, {"compile": run_eagerly(torch.compile), **scaler}),
        (torch.amp, scaler),
        # Programs for any accelerator compare its type with "cuda".
        (torch.accelerator, {"current_accelerator": lambda check_available=False: torch.device("cuda")}),
        (torch.distributed, {"get_default_backend_for_device": _default_backend}),
        (
            torch.cuda,
            {
                "get_device_capability": returning((_MAJOR, _MINOR)),
                "get_device_properties": _properties,
                "is_bf16_supported": returning(True),
                "is_tf32_supported": returning(True),
                "make_graphed_callables": graphs.EAGER["make_graphed_callables"],
                "_lazy_init": torch.npu._lazy_init,
                "init": torch.npu.init,
            },
        ),
        (torch.cuda.amp, {"GradScaler": _GradScalerOfCuda}),
        (torch.cuda.random, {}),
        (torch.cuda.memory, {}),
    ]


def _default_backend(device: Any) -> str:
    """Return hccl for "cuda" as well."""
    of_device = torch.distributed.distributed_c10d.get_default_backend_for_device
    return of_device(str(device).replace("cuda", "npu"))  # type: ignore[no-any-return]


class _GradScalerOfCuda(torch.npu.amp.GradScaler):  # type: ignore[misc]
    """torch.cuda.amp.GradScaler, the older form without a device argument."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Step as with an unfused optimizer: torch_npu passes the scaler to a fused one, which does not accept it."""
        optimizer._step_supports_amp_scaling = False
        return super().step(optimizer, *args, **kwargs)


class _GradScaler(_GradScalerOfCuda):
    """Gradient scaler on the NPU in place of "cuda"."""

    def __init__(self, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class _Properties:
    """Device properties of an NPU, with the fields that only CUDA has."""

    major, minor = _MAJOR, _MINOR
    warp_size = 1

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def multi_processor_count(self) -> int:
        """Number of cube cores, the AI cores that multiply matrices."""
        return int(getattr(self._real, "cube_core_num", 0))


@functools.wraps(torch.npu.get_device_properties)
def _properties(device: Any = None) -> _Properties:
    return _Properties(torch.cuda.get_device_properties(device))
