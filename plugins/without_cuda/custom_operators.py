"""Operators that a program defines with a kernel for CUDA only: on other devices, that kernel is the default one."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from ascend_adapt import Patch, Symptom, wrap

from . import programs

_KEYS = {"cpu": "CPU", "npu": "PrivateUse1"}
_DEFAULT = "CompositeExplicitAutograd"  # Any kernel for the device itself has priority, also if it is registered later.
# The modules whose frames are between a program and Library.impl, which custom_op, impl and register_kernel call.
_BETWEEN = ("torch.library", "torch._library.", "functools", "wrapt.", "ascend_adapt.", __name__)


def _default_kernel(device: str) -> Patch:
    @wrap(
        "torch.library:Library.impl",
        name=f"kernels_for_cuda_on_{device}",
        devices=device,
        why="a program for GPUs registers the kernel of its operator for CUDA, and its tensors are on another device",
        until="the program registers its kernel for every device",
        without="crash",
        symptom=Symptom(reason="the fault is in the callers"),
    )
    def impl(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Register a kernel for CUDA as the default one too, unless the operator has one for this device."""
        result = wrapped(*args, **kwargs)
        key = kwargs.get("dispatch_key", args[2] if len(args) > 2 else "") or instance.dispatch_key
        if key == "CUDA" and programs.is_cuda_code(_globals_of_caller()):
            given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
            if not _has_kernel(instance, given["op_name"], device):
                _register_default(instance, given["op_name"], given["fn"], given.get("with_keyset", False))
        return result

    return impl


def _globals_of_caller() -> dict[str, Any]:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        frame = frame.f_back
    return frame.f_globals


def _has_kernel(library: Any, operator: Any, device: str) -> bool:
    import torch

    name = getattr(operator, "_name", operator)
    name = name if "::" in name else f"{library.ns}::{name}"
    keys = _KEYS[device], _DEFAULT, "CompositeImplicitAutograd"
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


def _register_default(library: Any, operator: Any, kernel: Any, with_keyset: bool) -> None:
    """Register the kernel for as long as ``library`` exists, which may only accept kernels for CUDA."""
    import torch

    if not hasattr(library, "_with_default_kernels"):
        library._with_default_kernels = torch.library.Library(library.ns, "FRAGMENT")
    library._with_default_kernels.impl(operator, kernel, _DEFAULT, with_keyset=with_keyset)


PATCHES = [_default_kernel(device) for device in _KEYS]
