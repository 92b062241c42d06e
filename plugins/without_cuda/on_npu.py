"""CUDA code on an NPU: torch_npu's own ``transfer_to_npu``, imported by the plugin of the code base."""

from __future__ import annotations

import os
from collections.abc import Iterator
from operator import attrgetter
from types import ModuleType
from typing import Any

from .code_base import CudaCodeBase, Names
from .profiling import MARKS, with_bool_signature

PLACES = ("cuda", "cuda.random", "cuda.memory", "cuda.nvtx", "cuda.profiler", "distributed")


def transfer(code_base: CudaCodeBase) -> None:
    """Import ``transfer_to_npu``, and rebind what the code base imported from torch before.

    It changes torch for the whole process and cannot be undone.
    """
    import torch

    # Since torch 2.13 torch.distributed reads the capability of every tensor's device, and torch_npu returns None
    # unless this is set. 8.0 means "not Hopper": no shortcut is taken.
    os.environ.setdefault("TORCH_NPU_DEVICE_CAPABILITY", "8.0")
    before = {place: dict(vars(attrgetter(place)(torch))) for place in PLACES}
    before[""] = {name: value for name, value in vars(torch).items() if name in PLACES}
    from torch_npu.contrib import transfer_to_npu as _  # noqa: F401 the import has the effect

    _disable_profiler_marks(torch)
    changed = [
        (old, new)
        for place, olds in before.items()
        for name, old in olds.items()
        if callable(old) or isinstance(old, ModuleType)
        if (new := _now(torch, place, name)) is not None and new is not old
    ]
    names = Names([*_unscripted(code_base), *changed])
    for module in code_base.modules():
        names.rebind(module)


def _disable_profiler_marks(torch: ModuleType) -> None:
    """Make the marks for NVIDIA's profilers no-ops; transfer_to_npu leaves them raising."""
    for path, mark in MARKS.items():
        place, _, name = path.rpartition(".")
        setattr(attrgetter(place)(torch.cuda) if place else torch.cuda, name, mark)
    torch.cuda.memory._record_memory_history = with_bool_signature(torch.cuda.memory._record_memory_history)


def _unscripted(code_base: CudaCodeBase) -> Iterator[tuple[Any, Any]]:
    """Yield each scripted function and its original: torch's fuser does not support NPUs, and raises.

    For that reason ``transfer_to_npu`` makes torch.jit.script a no-op from here on.
    """
    import torch

    for module in code_base.modules():
        for value in vars(module).values():
            if isinstance(value, torch.jit.ScriptFunction) and hasattr(value, "_torchdynamo_inline"):
                yield value, value._torchdynamo_inline


def _now(torch: ModuleType, place: str, name: str) -> Any:
    return getattr(attrgetter(place)(torch) if place else torch, name, None)
