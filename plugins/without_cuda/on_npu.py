"""CUDA code on an NPU: torch_npu's own ``transfer_to_npu``, asked for by the plugin of the code base."""

from __future__ import annotations

import os
from collections.abc import Iterator
from operator import attrgetter
from types import ModuleType
from typing import Any

from .code_base import CodeBase, Names
from .profiling import MARKS, with_truth_values

PLACES = ("cuda", "cuda.random", "cuda.memory", "cuda.nvtx", "cuda.profiler", "distributed")


def transfer(code_base: CodeBase) -> None:
    """Import ``transfer_to_npu``, and let what the code base has taken from torch before follow.

    It changes torch for the whole process, and cannot be taken back.
    """
    import torch

    # torch.distributed asks every tensor's device for it since torch 2.13, and torch_npu answers None unless told. What
    # follows from 8.0 is what follows from "not Hopper": no shortcut is taken.
    os.environ.setdefault("TORCH_NPU_DEVICE_CAPABILITY", "8.0")
    before = {place: dict(vars(attrgetter(place)(torch))) for place in PLACES}
    before[""] = {name: value for name, value in vars(torch).items() if name in PLACES}
    from torch_npu.contrib import transfer_to_npu as _  # noqa: F401 importing it is asking for it

    _profile_nothing(torch)
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


def _profile_nothing(torch: ModuleType) -> None:
    """Let what marks a run for NVIDIA's profilers do nothing, which transfer_to_npu leaves to raise."""
    for path, mark in MARKS.items():
        place, _, name = path.rpartition(".")
        setattr(attrgetter(place)(torch.cuda) if place else torch.cuda, name, mark)
    torch.cuda.memory._record_memory_history = with_truth_values(torch.cuda.memory._record_memory_history)


def _unscripted(code_base: CodeBase) -> Iterator[tuple[Any, Any]]:
    """Yield the functions that were scripted before, with what they were: torch's fuser knows no NPU, and raises.

    ``transfer_to_npu`` lets torch.jit.script do nothing from now on, for that reason.
    """
    import torch

    for module in code_base.modules():
        for value in vars(module).values():
            if isinstance(value, torch.jit.ScriptFunction) and hasattr(value, "_torchdynamo_inline"):
                yield value, value._torchdynamo_inline


def _now(torch: ModuleType, place: str, name: str) -> Any:
    return getattr(attrgetter(place)(torch) if place else torch, name, None)
