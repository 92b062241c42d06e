"""Tensor-parallel shards of the Megatron family: merge the ranks' shards of a parameter, and split a parameter.

Column-parallel weights are split along rows, row-parallel ones along columns; a gated MLP has one tensor with both
halves on each rank. Norms, positions and the biases of row-parallel layers are replicated.

Sources: EleutherAI/gpt-neox@9610391a and @ea7aefd8 megatron/model/transformer.py (with gpt_j_residual each rank adds
its own bias before the sum over ranks; Gated_Activation takes the gate from the second half), megatron/mpu/layers.py;
NVIDIA/Megatron-LM@core_v0.9.0 megatron/core/transformer/mlp.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from ascend_adapt.checkpoint.canonical import HEAD, QUERY_KEY_VALUE, ROW_PARALLEL, WORDS, heads, local_name, parameters
from ascend_adapt.checkpoint.qkv import reordered
from ascend_adapt.checkpoint.source import Rule, Tensors
from ascend_adapt.config.model_config import Model


@dataclass(frozen=True)
class Convention:
    """Conventions of a code base: QKV layout, which half of a gated MLP is the gate, whether biases are summed."""

    qkv: str = "grouped"
    gate_first: bool = True
    sums_biases: bool = False


@dataclass
class Sharding:
    """The shards of one model on ``ranks`` tensor-parallel ranks."""

    model: Model
    convention: Convention
    ranks: int
    differing: list[str] = field(default_factory=list)
    """Replicated parameters whose values differed between ranks, and were averaged."""

    def rule(self, ours: tuple[str, ...], key: str) -> Rule:
        """Return the rule for one tensor of the code base, whose shards are in order of rank."""
        return Rule(ours, (key,), lambda pieces: self.join(ours, pieces), lambda tensors: self.cut(ours, tensors))

    def join(self, ours: tuple[str, ...], pieces: Tensors) -> Tensors:
        """Merge the ranks' shards into canonical parameters."""
        axis = self._axis(ours[0])
        if axis is None:
            return [self._sum(pieces) if self._is_summed(ours[0]) else self._same(ours[0], pieces)]
        if len(ours) == 2:
            halves = [piece.chunk(2) for piece in pieces]
            order = (0, 1) if self.convention.gate_first else (1, 0)
            return [torch.cat([half[one] for half in halves]) for one in order]
        if QUERY_KEY_VALUE in ours[0]:
            here = heads(self.model).of_rank(self.ranks)
            pieces = [reordered(piece, here, self.convention.qkv, "grouped") for piece in pieces]
        return [torch.cat(list(pieces), axis) if len(pieces) > 1 else pieces[0]]

    def cut(self, ours: tuple[str, ...], tensors: Tensors) -> Tensors:
        """Split canonical parameters into the ranks' shards."""
        axis = self._axis(ours[0])
        if axis is None:
            rest = [torch.zeros_like(tensors[0]) if self._is_summed(ours[0]) else tensors[0]] * (self.ranks - 1)
            return [tensors[0], *rest]
        pieces = [tensor.chunk(self.ranks, axis) for tensor in tensors]
        if len(ours) == 2:
            gates, ups = pieces
            pairs = zip(gates, ups, strict=True)
            return [torch.cat(pair if self.convention.gate_first else pair[::-1]) for pair in pairs]
        if QUERY_KEY_VALUE in ours[0]:
            here = heads(self.model).of_rank(self.ranks)
            return [reordered(piece, here, "grouped", self.convention.qkv).contiguous() for piece in pieces[0]]
        return [piece.contiguous() for piece in pieces[0]]

    def shapes(self, ours: tuple[str, ...]) -> list[torch.Size]:
        """Return the shape of each rank's shard."""
        shapes = {one.name: one.shape for one in parameters(self.model) if one.name in ours}
        whole = [torch.empty(shapes[name], device="meta") for name in ours]
        return [piece.shape for piece in self.cut(ours, whole)]

    def _axis(self, name: str) -> int | None:
        if name in (WORDS, HEAD):
            return 0
        _, local = local_name(name)
        layer, _, kind = local.rpartition(".")
        if layer in ROW_PARALLEL:
            return 1 if kind == "weight" else None
        return 0 if layer == QUERY_KEY_VALUE or layer.startswith("mlp.") else None

    def _is_summed(self, name: str) -> bool:
        _, local = local_name(name)
        is_row_bias = local.rpartition(".")[0] in ROW_PARALLEL
        return self.convention.sums_biases and is_row_bias and self.ranks > 1

    def _sum(self, pieces: Tensors) -> torch.Tensor:
        return torch.stack([piece.float() for piece in pieces]).sum(0).to(pieces[0].dtype)

    def _same(self, name: str, pieces: Tensors) -> torch.Tensor:
        if all(torch.equal(piece, pieces[0]) for piece in pieces[1:]):
            return pieces[0]
        self.differing.append(name)
        return torch.stack([piece.float() for piece in pieces]).mean(0).to(pieces[0].dtype)


def units(model: Model) -> Iterator[tuple[str, ...]]:
    """Yield the canonical names in each tensor of the Megatron family: gate and up projection share a tensor."""
    for one in parameters(model):
        if ".mlp.gate." in one.name:
            continue
        gate = one.name.replace(".mlp.dense_h_to_4h.", ".mlp.gate.")
        yield (gate, one.name) if model.gated and gate != one.name else (one.name,)
