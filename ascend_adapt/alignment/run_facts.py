"""Facts about a run and its modules, such as versions and settings, that may explain a difference."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ascend_adapt.alignment import shards
from ascend_adapt.whole_numbers import whole_number

_LONGEST = 200


def rank(environ: Mapping[str, str]) -> int:
    """Return this process's rank in its process group, else the rank in its environment, else 0."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        own: int = torch.distributed.get_rank()
        return own
    return whole_number(environ.get("RANK")) or 0


def facts(rank: int, device: torch.device, modules: list[nn.Module]) -> dict[str, Any]:
    """Return the facts that are recorded once per rank."""
    native = [each.tp for each in modules if hasattr(getattr(each, "tp", None), "size")]
    tp = (native[0].rank, native[0].size) if native else shards.tensor_ranks()
    compiled = [type(each).__name__ for each in modules if _is_compiled(each)]
    return {
        "rank": rank,
        "pid": os.getpid(),
        "device": device.type,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seed": torch.initial_seed(),
        "threads": torch.get_num_threads(),
        "matmul": _matmul_precision(device),
        "tensor_parallel": list(tp) if tp is not None else None,
        "compiled": sorted(set(compiled)),
    }


def settings_of(module: nn.Module) -> str:
    """Return the settings in a module's repr, such as sizes, epsilons and probabilities."""
    try:
        return f"{module.extra_repr()[:_LONGEST]}{'' if module.training else ' (eval mode)'}".strip()
    except Exception as error:  # extra_repr is code of the program, which usually runs only when the module is printed
        return f"extra_repr: {type(error).__name__}"


def plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a group of parameters."""
    found: dict[str, Any] = {}
    for key, value in group.items():
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = float(value)
        if isinstance(value, (bool, int, float, str, type(None))):
            found[key] = value
        elif isinstance(value, (tuple, list)) and all(isinstance(each, (int, float)) for each in value):
            found[key] = list(value)
    return found


def _matmul_precision(device: torch.device) -> str:
    """Return the precision of the device's fp32 matrix products."""
    if device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    npu: Any = getattr(torch, "npu", None)
    if device.type == "npu" and getattr(getattr(npu, "matmul", None), "allow_hf32", False):
        return "tf32"  # HF32 has as many mantissa bits
    return "float32"


def _is_compiled(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule"
