"""CUDA code on an NPU: torch_npu's own ``transfer_to_npu``, asked for by the plugin of the code base."""

from __future__ import annotations

import os
from operator import attrgetter
from types import ModuleType
from typing import Any

from .code_base import CodeBase, Names

PLACES = ("cuda", "cuda.random", "distributed")


def transfer(code_base: CodeBase) -> None:
    """Import ``transfer_to_npu``, and let what the code base has taken from torch before follow.

    It changes torch for the whole process, and cannot be taken back.
    """
    import torch

    # torch 2.13's broadcast, and Megatron before bf16, ask for it; torch_npu answers None unless this says otherwise.
    os.environ.setdefault("TORCH_NPU_DEVICE_CAPABILITY", "8.0")
    before = {place: dict(vars(attrgetter(place)(torch))) for place in PLACES}
    before[""] = {name: value for name, value in vars(torch).items() if name in PLACES}
    from torch_npu.contrib import transfer_to_npu as _  # noqa: F401 importing it is asking for it

    names = Names(
        [
            (old, new)
            for place, olds in before.items()
            for name, old in olds.items()
            if callable(old) or isinstance(old, ModuleType)
            if (new := _now(torch, place, name)) is not None and new is not old
        ]
    )
    for module in code_base.modules():
        names.rebind(module)


def _now(torch: ModuleType, place: str, name: str) -> Any:
    return getattr(attrgetter(place)(torch) if place else torch, name, None)
