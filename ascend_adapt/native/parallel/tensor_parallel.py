"""Tensor parallelism: linear layers and embeddings with sharded weights, and their collectives.

In a block the first linear layer is column-parallel and the second row-parallel (Megatron-LM, arXiv 1909.08053).
Between them is the tensor-parallel region, where a rank computes its own heads or channels; ``enter`` and
``leave`` are its boundaries. With sequence parallelism (arXiv 2205.05198) activations outside it are sharded along the
sequence.

DTensor is not used for this axis: parameters of different meshes cannot be clipped or stepped together, and its
operators on an NPU differ from release to release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from ascend_adapt.native.config.train_config import Init
from ascend_adapt.native.parallel import collectives
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.parameters import Declared, ParameterLayout


@dataclass(frozen=True)
class TensorParallel:
    """Tensor-parallel group of a layer. Activations are [B, S, H]; ``sequence``: sharded along S between layers."""

    group: Any
    size: int
    rank: int
    sequence: bool

    @classmethod
    def of(cls, mesh: Mesh) -> TensorParallel:
        """Return the tensor-parallel group of a mesh."""
        size = mesh.parallel.tensor
        return cls(mesh.group("tensor"), size, mesh.tensor_rank, mesh.parallel.sequence and size > 1)

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Enter the region: all-gather ``x`` to [B, S, H] if sharded; the gradient is summed over ranks."""
        if self.size == 1:
            return x
        entered: torch.Tensor = (_Gather if self.sequence else _Copy).apply(x, self.group)
        return entered

    def leave(self, partial: torch.Tensor) -> torch.Tensor:
        """Leave the region: all-reduce [B, S, H], or reduce-scatter it along S under sequence parallelism."""
        if self.size == 1:
            return partial
        left: torch.Tensor = (_Scatter if self.sequence else _Sum).apply(partial, self.group)
        return left

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        """All-gather ``x`` along S for a consumer whose gradient is already summed, and equal on every rank."""
        if not self.sequence:
            return x
        whole: torch.Tensor = _GatherForSummedGradient.apply(x, self.group)
        return whole

    def piece(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard of ``x`` [B, S, ...] along S, under sequence parallelism."""
        return x.chunk(self.size, 1)[self.rank] if self.sequence else x

    def sequence_length(self, whole: int) -> int:
        """Return the sequence length on one rank between layers."""
        return whole // self.size if self.sequence else whole


class ColumnParallelLinear(Declared):
    """Linear layer with the rows of W sharded, inside the region: [B, S, H] -> [B, S, out / ranks]."""

    def __init__(self, tp: TensorParallel, inner: int, out: int, *, bias: bool, init: Init) -> None:
        super().__init__()
        self.tp = tp
        self.declare("weight", (out // tp.size, inner), ParameterLayout(init, cut=0))
        self.declare("bias", (out // tp.size,) if bias else None, ParameterLayout(0.0, cut=0))

    def forward(self, x: torch.Tensor, *, bias: str = "add") -> torch.Tensor:
        """Return this rank's columns of x W^T + b; ``bias``: "detach" adds it without its gradient, "leave" does not.

        The caller then computes what is missing, fused with other work.
        """
        added = {"add": self.bias, "detach": None if self.bias is None else self.bias.detach(), "leave": None}[bias]
        return functional.linear(x, self.weight, added)


class RowParallelLinear(Declared):
    """Linear layer with the columns of W sharded, which leaves the region: [B, S, in / ranks] -> [B, S, H]."""

    def __init__(self, tp: TensorParallel, inner: int, out: int, *, bias: bool, init: Init) -> None:
        super().__init__()
        self.tp = tp
        self.declare("weight", (out, inner // tp.size), ParameterLayout(init, cut=1))
        self.declare("bias", (out,) if bias else None, ParameterLayout(0.0, partial=tp.sequence))

    def forward(self, x: torch.Tensor, *, add_bias: bool = True) -> torch.Tensor:
        """Return x W^T summed over ranks, plus the bias once if ``add_bias``."""
        if not add_bias:
            return self.tp.leave(functional.linear(x, self.weight))
        if self.tp.size == 1:
            return functional.linear(x, self.weight, self.bias)
        left = self.tp.leave(functional.linear(x, self.weight))
        return left if self.bias is None else left + self.bias


class VocabularyParallelEmbedding(Declared):
    """Embedding with its rows sharded, which leaves the region: int64 [B, S] -> [B, S, H]."""

    def __init__(self, tp: TensorParallel, rows: int, hidden: int, init: Init) -> None:
        super().__init__()
        self.tp = tp
        self.first = tp.rank * (rows // tp.size)
        self.declare("weight", (rows // tp.size, hidden), ParameterLayout(init, cut=0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up the rows of these ids."""
        if self.tp.size == 1:
            return functional.embedding(ids, self.weight)
        row = ids - self.first
        elsewhere = (row < 0) | (row >= self.weight.shape[0])
        partial = functional.embedding(row.masked_fill(elsewhere, 0), self.weight)
        return self.tp.leave(partial.masked_fill(elsewhere[..., None], 0.0))


def _all_gather(x: torch.Tensor, group: Any) -> torch.Tensor:
    """All-gather [B, s, H] along the sequence to [B, S, H]."""
    mine = x.transpose(0, 1).contiguous()
    whole = mine.new_empty((mine.shape[0] * dist.get_world_size(group), *mine.shape[1:]))
    collectives.all_gather(whole, mine, group)
    return whole.transpose(0, 1)


def _reduce_scatter(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Reduce-scatter [B, S, H] along the sequence to [B, s, H]."""
    whole = x.transpose(0, 1).contiguous()
    mine = whole.new_empty((whole.shape[0] // dist.get_world_size(group), *whole.shape[1:]))
    collectives.reduce_scatter(mine, whole, group)
    return mine.transpose(0, 1)


# _Sum reduces in place: its input is a matrix product that nothing else refers to, so no copy is needed.


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = grads[0].contiguous()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _all_gather(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _reduce_scatter(grads[0], ctx.group), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _all_gather(grads[0], ctx.group), None


class _GatherForSummedGradient(_Gather):
    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        ranks, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        return grads[0].chunk(ranks, 1)[rank].contiguous(), None
