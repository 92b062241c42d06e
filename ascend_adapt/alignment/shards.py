"""Which axis of a tensor is sharded over tensor-parallel ranks, where a module says so.

Read from the native trainer's layouts, and from the attributes that Megatron-LM and its descendants set.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_PARALLEL_STATES = (
    "megatron.core.parallel_state",
    "megatron.core.mpu",
    "megatron.mpu.initialize",
    "megatron.mpu",
    "mpu",
)


@dataclass(frozen=True)
class Shard:
    """A rank's shard of a tensor: along ``axis``, or, if that is None, one of the terms that sum up to the tensor."""

    axis: int | None
    rank: int
    size: int

    def offset(self, shape: torch.Size) -> int:
        """Return the index of the first element along the axis in the full tensor."""
        return 0 if self.axis is None else self.rank * shape[self.axis]


def tensor_ranks() -> tuple[int, int] | None:
    """Return (rank, size) of Megatron's tensor-parallel group, if its code is loaded and initialised."""
    for name in _PARALLEL_STATES:
        state: Any = sys.modules.get(name)
        if state is not None and getattr(state, "model_parallel_is_initialized", bool)():
            return state.get_tensor_model_parallel_rank(), state.get_tensor_model_parallel_world_size()
    return None


def of_parameter(module: nn.Module, name: str, parameter: torch.Tensor) -> Shard | None:
    """Return the shard that a parameter is, or None: it is complete, or unknown."""
    tp = _tensor_parallel(module)
    if tp is None:
        return None
    layouts: Any = getattr(module, "layouts", {})
    axis = layouts[name].cut if name in layouts else None
    if getattr(parameter, "tensor_model_parallel", False) and getattr(parameter, "partition_stride", 1) == 1:
        axis = getattr(parameter, "partition_dim", None)
    return None if axis is None or axis < 0 else Shard(axis, *tp)


def of_output(module: nn.Module) -> Shard | None:
    """Return the shard that the output of a module is."""
    tp = _tensor_parallel(module)
    if tp is None or not _is_column_parallel(module) or getattr(module, "gather_output", False):
        return None
    return Shard(-1, *tp)


def of_input(module: nn.Module) -> Shard | None:
    """Return the shard that the first input of a module is."""
    tp = _tensor_parallel(module)
    is_row_parallel = type(module).__name__ == "RowParallelLinear" and getattr(module, "input_is_parallel", True)
    return Shard(-1, *tp) if tp is not None and is_row_parallel else None


def of_input_gradient(module: nn.Module) -> Shard | None:
    """Return the shard that the gradient of the first input is: in the native trainer's region, a term of a sum."""
    tp, home = _tensor_parallel(module), type(module).__module__
    names = ("ColumnParallelLinear", "Attention", "MLP")
    if tp is not None and home.startswith("ascend_adapt.native.") and type(module).__name__ in names:
        return Shard(None, *tp)
    return of_input(module)


def _is_column_parallel(module: nn.Module) -> bool:
    return type(module).__name__ == "ColumnParallelLinear"


def _tensor_parallel(module: nn.Module) -> tuple[int, int] | None:
    """Return (rank, size) of a module's tensor-parallel group, if it has more than one rank."""
    native: Any = getattr(module, "tp", None)
    found = (native.rank, native.size) if hasattr(native, "size") and hasattr(native, "rank") else tensor_ranks()
    return found if found is not None and found[1] > 1 else None
