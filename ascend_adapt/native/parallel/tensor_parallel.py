"""Tensor parallelism: linear layers and embeddings with sharded weights, and their collectives.

In a block the first linear layer is column-parallel and the second row-parallel (Megatron-LM, arXiv 1909.08053).
Between them is the tensor-parallel region, where a rank computes its own heads or channels; ``enter`` and ``leave`` are
its boundaries. With sequence parallelism (arXiv 2205.05198) activations outside it are sharded along the sequence, or
along the batch if its rows are divisible by the ranks: such shards are contiguous, so collectives need no copies.

DTensor is not used for this axis: parameters of different meshes cannot be clipped or stepped together, and its
operators on NPUs differ between releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from ascend_adapt.config.train_config import Init
from ascend_adapt.native.parallel import accumulation, collectives
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.parallel.parameters import Declared, ParameterLayout


@dataclass(frozen=True)
class TensorParallel:
    """Tensor-parallel group of a layer. Activations are [B, S, H], sharded between layers if ``sequence``."""

    group: Any
    size: int
    rank: int
    sequence: bool
    axis: int = 1
    """The sharded axis: 0 (B) or 1 (S)."""

    @classmethod
    def of(cls, mesh: Mesh, rows: int = 1) -> TensorParallel:
        """Return the tensor-parallel group of a mesh, for batches of a multiple of ``rows`` rows."""
        size = mesh.parallel.tensor
        sequence, axis = mesh.parallel.sequence and size > 1, 1 if rows % size else 0
        return cls(mesh.group("tensor"), size, mesh.tensor_rank, sequence, axis)

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Enter the region: all-gather ``x`` to [B, S, H] if sharded; the gradient is summed over ranks."""
        if self.size == 1:
            return x
        entered: torch.Tensor = _Gather.apply(x, self) if self.sequence else _Copy.apply(x, self.group)
        return entered

    def leave(self, partial: torch.Tensor) -> torch.Tensor:
        """Leave the region: all-reduce [B, S, H], or reduce-scatter it under sequence parallelism."""
        if self.size == 1:
            return partial
        left: torch.Tensor = _Scatter.apply(partial, self) if self.sequence else _Sum.apply(partial, self.group)
        return left

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        """All-gather ``x`` for a consumer whose gradient is already summed, and equal on every rank."""
        if not self.sequence:
            return x
        whole: torch.Tensor = _GatherForSummedGradient.apply(x, self)
        return whole

    def piece(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard of ``x`` [B, S, ...], under sequence parallelism."""
        return x.chunk(self.size, self.axis)[self.rank] if self.sequence else x

    def sizes(self, rows: int, length: int) -> tuple[int, int]:
        """Return the sizes of B and S on one rank between layers."""
        ranks = self.size if self.sequence else 1
        return (rows // ranks, length) if self.axis == 0 else (rows, length // ranks)

    def whole_length(self, length: int) -> int:
        """Return the full length of a sequence of which one rank holds ``length`` tokens between layers."""
        return length * self.size if self.sequence and self.axis == 1 else length


class ColumnParallelLinear(Declared):
    """Linear layer with the rows of W sharded, inside the region: [B, S, H] -> [B, S, out / ranks].

    With ``enters``, the layer includes ``TensorParallel.enter``, whose collective in the backward pass then overlaps
    the matrix product for the weight's gradient.
    """

    def __init__(
        self, tp: TensorParallel, inner: int, out: int, *, bias: bool, init: Init, enters: bool = False
    ) -> None:
        super().__init__()
        self.tp, self.enters = tp, enters and tp.size > 1
        self.declare("weight", (out // tp.size, inner), ParameterLayout(init, cut=0))
        self.declare("bias", (out // tp.size,) if bias else None, ParameterLayout(0.0, cut=0))

    def forward(self, x: torch.Tensor, *, bias: str = "add") -> torch.Tensor:
        """Return this rank's columns of x W^T + b. ``bias``: "detach" adds b without its gradient, "leave" omits b.

        The caller must then compute the missing part, fused with other work.
        """
        added = {"add": self.bias, "detach": None if self.bias is None else self.bias.detach(), "leave": None}[bias]
        # torch.compile breaks its graph at collectives that overlap other work.
        if self.enters and not torch.compiler.is_compiling():
            entered: torch.Tensor = _EnterLinear.apply(x, self.weight, added, self.tp)
            return entered
        return accumulation.linear(self.tp.enter(x) if self.enters else x, self.weight, added)


class RowParallelLinear(Declared):
    """Linear layer with the columns of W sharded; its output leaves the region: [B, S, in / ranks] -> [B, S, H]."""

    def __init__(self, tp: TensorParallel, inner: int, out: int, *, bias: bool, init: Init) -> None:
        super().__init__()
        self.tp = tp
        self.declare("weight", (out, inner // tp.size), ParameterLayout(init, cut=1))
        self.declare("bias", (out,) if bias else None, ParameterLayout(0.0, partial=tp.sequence))

    def forward(self, x: torch.Tensor, *, add_bias: bool = True) -> torch.Tensor:
        """Return x W^T summed over ranks, plus the bias once if ``add_bias``."""
        if not add_bias:
            return self.tp.leave(accumulation.linear(x, self.weight, None))
        if self.tp.size == 1:
            return accumulation.linear(x, self.weight, self.bias)
        left = self.tp.leave(accumulation.linear(x, self.weight, None))
        return left if self.bias is None else left + self.bias


class VocabularyParallelEmbedding(Declared):
    """Embedding with its rows sharded; its output leaves the region: int64 [B, S] -> [B, S, H]."""

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


def _all_gather(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """All-gather the shards of ``x`` to [B, S, H]."""
    mine = x.transpose(0, tp.axis).contiguous()
    whole = mine.new_empty((mine.shape[0] * tp.size, *mine.shape[1:]))
    collectives.all_gather(whole, mine, tp.group)
    return whole.transpose(0, tp.axis)


def _reduce_scatter(x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Reduce-scatter [B, S, H] to this rank's shard."""
    return _start_reduce_scatter(x, tp, async_op=False)[0]


def _start_reduce_scatter(x: torch.Tensor, tp: TensorParallel, *, async_op: bool = True) -> tuple[torch.Tensor, Any]:
    """Start to reduce-scatter [B, S, H]; return the work handle, and this rank's shard, valid after waiting for it."""
    whole = x.transpose(0, tp.axis).contiguous()
    mine = whole.new_empty((whole.shape[0] // tp.size, *whole.shape[1:]))
    work = collectives.reduce_scatter(mine, whole, tp.group, async_op=async_op)
    return mine.transpose(0, tp.axis), work


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
    def forward(ctx: Any, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        ctx.tp = tp
        return _all_gather(x, tp)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _reduce_scatter(grads[0], ctx.tp), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        ctx.tp = tp
        return _reduce_scatter(x, tp)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _all_gather(grads[0], ctx.tp), None


class _EnterLinear(torch.autograd.Function):
    """``TensorParallel.enter`` and a linear layer: the input gradient's all-reduce overlaps the weight gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tp: TensorParallel
    ) -> torch.Tensor:
        whole = _all_gather(x, tp) if tp.sequence else x
        ctx.tp, ctx.weight = tp, weight
        ctx.save_for_backward(whole, weight)
        return functional.linear(whole, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (whole, weight), rows = ctx.saved_tensors, grads[0].reshape(-1, grads[0].shape[-1])
        mine = (rows @ weight).view(whole.shape)
        if ctx.tp.sequence:
            mine, work = _start_reduce_scatter(mine, ctx.tp)
        else:
            work = dist.all_reduce(mine, group=ctx.tp.group, async_op=True)
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = accumulation.weight_gradient(rows, whole.reshape(len(rows), -1), ctx.weight)
        of_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        work.wait()
        return mine, of_weight, of_bias, None


class _GatherForSummedGradient(_Gather):
    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.tp.piece(grads[0]).contiguous(), None
