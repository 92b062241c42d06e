"""Functions and classes of torch that take the name of a device and are seen by no function mode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .cuda_means_cpu import on_host


class Autocast(torch.autocast):  # type: ignore[misc]
    """Autocast, of the CPU where it is asked for on "cuda", in the dtype that it would have there."""

    def __init__(
        self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", torch.get_autocast_dtype("cuda") if dtype is None else dtype
        super().__init__(device_type, dtype, enabled, cache_enabled)


class AutocastOfCuda(Autocast):
    """The older form, torch.cuda.amp.autocast, which names no device."""

    def __init__(self, enabled: bool = True, dtype: Any = torch.float16, cache_enabled: bool = True) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(torch.amp.GradScaler):  # type: ignore[misc]
    """The loss scale, of the CPU where it is asked for on "cuda"."""

    def __init__(self, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        super().__init__(torch.device(on_host(device)).type, *args, **kwargs)


class GradScalerOfCuda(GradScaler):
    """The older form, torch.cuda.amp.GradScaler, which names no device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("cuda", *args, **kwargs)


def _load() -> Callable[..., Any]:
    @functools.wraps(torch.load)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Without one, what was saved on a GPU goes back to where it was.
        where = "cpu" if map_location is None else map_location
        if isinstance(where, dict):
            where = {old: str(on_host(new)) for old, new in where.items()}
        return torch.load(f, on_host(where), *args, **kwargs)

    return load


def _set_default_device() -> Callable[..., None]:
    @functools.wraps(torch.set_default_device)
    def set_default_device(device: Any) -> None:
        torch.set_default_device(on_host(device))

    return set_default_device


AMP = {"autocast": Autocast, "GradScaler": GradScaler}
AMP_OF_CUDA = {"autocast": AutocastOfCuda, "GradScaler": GradScalerOfCuda}
TORCH = {"autocast": Autocast, "load": _load(), "set_default_device": _set_default_device()}
