"""Replacements for torch functions and classes that take a device name and bypass function modes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ._cuda_means_cpu import on_host


class Autocast(torch.autocast):  # type: ignore[misc]
    """Autocast on the CPU instead of "cuda", with the default dtype of "cuda"."""

    def __init__(
        self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", torch.get_autocast_dtype("cuda") if dtype is None else dtype
        super().__init__(device_type, dtype, enabled, cache_enabled)


class AutocastOfCuda(Autocast):
    """torch.cuda.amp.autocast, the older form without a device argument."""

    def __init__(self, enabled: bool = True, dtype: Any = torch.float16, cache_enabled: bool = True) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(torch.amp.GradScaler):  # type: ignore[misc]
    """Gradient scaler on the CPU instead of "cuda"."""

    def __init__(self, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        super().__init__(torch.device(on_host(device)).type, *args, **kwargs)


class GradScalerOfCuda(GradScaler):
    """torch.cuda.amp.GradScaler, the older form without a device argument."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("cuda", *args, **kwargs)


def _load() -> Callable[..., Any]:
    @functools.wraps(torch.load)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Without map_location, torch restores tensors to the GPU from which they were saved.
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


def _set_default_tensor_type() -> Callable[..., None]:
    @functools.wraps(torch.set_default_tensor_type)
    def set_default_tensor_type(t: Any) -> None:
        torch.set_default_tensor_type(t.replace("torch.cuda.", "torch.") if isinstance(t, str) else t)

    return set_default_tensor_type


def _of_device_type(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its ``device_type``, given first or by keyword, may be "cuda"."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs = {name: _type(value) if name == "device_type" else value for name, value in kwargs.items()}
        return function(*(_type(arg) for arg in args), **kwargs)

    return call


def _type(value: Any) -> Any:
    return "cpu" if value == "cuda" else value


class _IsAnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Generator)


class Generator(torch.Generator, metaclass=_IsAnyGenerator):  # type: ignore[misc]
    """torch.Generator, with a CPU generator for "cuda"."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return torch.Generator(on_host(device))


class _IsAnyDevice(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.device)


class Device(metaclass=_IsAnyDevice):
    """torch.device that accepts a bare index as a CUDA device, which torch rejects without an accelerator."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a torch.device."""
        if len(args) == 1 and isinstance(args[0], int):
            args = ("cuda", *args)
        return torch.device(*args, **kwargs)


def _autocast_is_enabled(device_type: str = "cuda") -> bool:
    return torch.is_autocast_enabled(_type(device_type))  # type: ignore[no-any-return]


def _enable_autocast(*args: Any) -> None:
    """torch.set_autocast_enabled, called with (enabled) or (device_type, enabled)."""
    torch.set_autocast_enabled("cpu" if len(args) == 1 else _type(args[0]), args[-1])


AMP = {
    "autocast": Autocast,
    "GradScaler": GradScaler,
    "custom_fwd": _of_device_type(torch.amp.custom_fwd),
    "custom_bwd": _of_device_type(torch.amp.custom_bwd),
}
AMP_OF_CUDA = {
    "autocast": AutocastOfCuda,
    "GradScaler": GradScalerOfCuda,
    "custom_fwd": functools.partial(torch.amp.custom_fwd, device_type="cpu"),
    "custom_bwd": functools.partial(torch.amp.custom_bwd, device_type="cpu"),
}
TORCH = {
    "autocast": Autocast,
    "device": Device,
    "GradScaler": GradScaler,
    "get_autocast_gpu_dtype": functools.partial(torch.get_autocast_dtype, "cpu"),
    "is_autocast_enabled": _autocast_is_enabled,
    "set_autocast_enabled": _enable_autocast,
    "set_autocast_gpu_dtype": functools.partial(torch.set_autocast_dtype, "cpu"),
    "load": _load(),
    "set_default_device": _set_default_device(),
    "set_default_tensor_type": _set_default_tensor_type(),
    **{name: _of_device_type(getattr(torch, name)) for name in ("get_autocast_dtype", "set_autocast_dtype")},
}
