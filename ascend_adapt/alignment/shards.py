"""Tensor-parallel shards: the axis along which a tensor is sharded, as its module declares it.

The declarations are the native trainer's layouts, and the attributes that Megatron-LM and its descendants set.
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
    """A rank's shard of a tensor, along ``axis``. If ``axis`` is None, the shards are terms whose sum is the tensor.

    With a stride, the tensor is a concatenation of ``stride`` tensors, such as gate and up of a gated layer, and the
    rank has its shard of each.
    """

    axis: int | None
    rank: int
    size: int
    stride: int = 1

    def pieces(self, tensor: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
        """Return the pieces that are contiguous in the full tensor, each with the index of its first element in it."""
        if self.axis is None:
            return [(tensor, 0)]
        pieces = tensor.chunk(self.stride, self.axis)
        return [(one, (index * self.size + self.rank) * one.shape[self.axis]) for index, one in enumerate(pieces)]


def tensor_ranks() -> tuple[int, int] | None:
    """Return (rank, size) of Megatron's tensor-parallel group, if its code is loaded and initialised."""
    for name in _PARALLEL_STATES:
        state: Any = sys.modules.get(name)
        if state is not None and getattr(state, "model_parallel_is_initialized", bool)():
            return state.get_tensor_model_parallel_rank(), state.get_tensor_model_parallel_world_size()
    return None


def of_parameter(module: nn.Module, name: str, parameter: torch.Tensor) -> Shard | None:
    """Return the shard of a parameter; None if the parameter is complete, or the shard unknown."""
    tp = _tensor_parallel(module)
    layouts: Any = getattr(module, "layouts", {})
    if tp is not None and name in layouts and layouts[name].cut is not None:
        return Shard(layouts[name].cut, *tp)
    return of_megatron(parameter, tp)


def of_megatron(parameter: torch.Tensor, tp: tuple[int, int] | None = None) -> Shard | None:
    """Return the shard that Megatron's attributes declare for a parameter or its master weight."""
    tp = tp or tensor_ranks()
    axis = getattr(parameter, "partition_dim", -1) if getattr(parameter, "tensor_model_parallel", False) else -1
    # The distributed optimizer's flat part of a weight has the attributes of the weight.
    is_cut = tp is not None and tp[1] > 1 and 0 <= axis < parameter.dim()
    return Shard(axis, *tp, _stride(parameter)) if tp is not None and is_cut else None


def of_parameter_gradient(module: nn.Module, name: str, parameter: torch.Tensor) -> Shard | None:
    """Return the shard of a parameter's gradient that a backward pass computes.

    With sequence parallelism, each rank computes the term of its positions. Megatron sums these before the optimizer
    step.
    """
    tp = _tensor_parallel(module)
    if tp is not None and getattr(parameter, "sequence_parallel", False):
        return Shard(None, *tp)
    return of_parameter(module, name, parameter)


def of_output(module: nn.Module) -> Shard | None:
    """Return the shard of a module's first output."""
    tp = _tensor_parallel(module)
    if tp is None:
        return None
    if _is(module, "ColumnParallelLinear"):
        return None if getattr(module, "gather_output", False) else Shard(-1, *tp, _stride(module))
    scatters = _is(module, "RowParallelLinear") and getattr(module, "sequence_parallel", False)
    return Shard(0, *tp) if scatters or getattr(module, "reduce_scatter_embeddings", False) else None


def of_input(module: nn.Module) -> Shard | None:
    """Return the shard of a module's first input."""
    tp = _tensor_parallel(module)
    if tp is None:
        return None
    if _is(module, "RowParallelLinear"):
        return Shard(-1, *tp, _stride(module)) if getattr(module, "input_is_parallel", True) else None
    gathers = _is(module, "ColumnParallelLinear") and getattr(module, "sequence_parallel", False)
    return Shard(0, *tp) if gathers else None


def of_input_gradient(module: nn.Module) -> Shard | None:
    """Return the shard of the gradient of a module's first input.

    In the native trainer this gradient is a term of a sum, unless the module itself enters the tensor-parallel region.
    """
    tp, home = _tensor_parallel(module), type(module).__module__
    names = ("ColumnParallelLinear", "Attention", "MLP")
    if tp is not None and home.startswith("ascend_adapt.native.") and type(module).__name__ in names:
        return None if getattr(module, "enters", False) else Shard(None, *tp)
    return of_input(module)


def _is(module: nn.Module, layer: str) -> bool:
    """Return whether a module's class is ``name`` or a variant of it, such as Transformer Engine's
    TELayerNormColumnParallelLinear."""
    return type(module).__name__.endswith(layer)


def _stride(of: Any) -> int:
    """Return Megatron's stride of a parameter, or of a layer's weight."""
    stride: int = getattr(getattr(of, "weight", of), "partition_stride", 1)
    return stride


def _tensor_parallel(module: nn.Module) -> tuple[int, int] | None:
    """Return (rank, size) of a module's tensor-parallel group, if it has more than one rank."""
    native: Any = getattr(module, "tp", None)
    found = (native.rank, native.size) if hasattr(native, "size") and hasattr(native, "rank") else tensor_ranks()
    return found if found is not None and found[1] > 1 else None
