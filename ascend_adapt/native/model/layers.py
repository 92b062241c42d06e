"""Transformer block of the GPT family. Sizes are for the full model; each rank holds a share of heads and channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ascend_adapt import kernels
from ascend_adapt.config.train_config import Model
from ascend_adapt.native.model.dropout import dropout, dropout_seed, rank_rng
from ascend_adapt.native.model.kv_cache import KeyValueCache
from ascend_adapt.native.parallel.parameters import Declared, ParameterLayout
from ascend_adapt.native.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear, TensorParallel


@dataclass(frozen=True)
class AttentionContext:
    """Attention mask and rotary tables, shared by all layers."""

    masked_out: torch.Tensor | None = None
    """bool [B, 1, S, K], True = masked out; None means causal."""
    rotary: tuple[torch.Tensor, torch.Tensor] | None = None
    """cos and sin, each [S, R] or [B, 1, S, R], in the dtype of the hidden states."""
    cache: KeyValueCache | None = None
    """Key/value cache of the tokens before x."""
    prefix: torch.Tensor | None = None
    """int64 [B], the length of the prefix that all tokens attend to; causal after it. Exclusive with masked_out."""


@dataclass(frozen=True)
class Branch:
    """The output of a row-parallel layer, [B, S, H], not yet added to the residual stream."""

    value: torch.Tensor
    bias: torch.Tensor | None
    dropout_p: float = 0.0
    seed: torch.Tensor | None = None
    """Seed of the dropout, int64 [1]; None without dropout."""


class Norm(Declared):
    """LayerNorm or RMSNorm over the last axis."""

    def __init__(self, model: Model, tp: TensorParallel) -> None:
        super().__init__()
        self.eps, self.rms, self.eps_on_root = model.norm_eps, model.norm == "rmsnorm", model.rms_eps_on_root
        width = (model.hidden_size,)
        self.declare("weight", width, ParameterLayout(1.0, partial=tp.sequence))
        self.declare("bias", None if self.rms else width, ParameterLayout(0.0, partial=tp.sequence))

    def forward(self, x: torch.Tensor, branch: Branch | None = None) -> Any:
        """Normalise [..., H]. With a ``branch``, add it first, and return the sum and its norm."""
        if branch is not None:
            return kernels.add_norm(
                x, branch.value, branch.bias, self.weight, self.bias,
                eps=self.eps, rms=self.rms, dropout_p=branch.dropout_p, seed=branch.seed,
            )  # fmt: skip
        if self.eps_on_root:
            # Source: gpt-neox@9610391a megatron/model/norms.py. The gradient of sqrt(mean(x^2)) is NaN at 0.
            wide = torch.promote_types(x.dtype, torch.float32)
            root = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide) * x.shape[-1] ** -0.5
            return (x / (root + self.eps)).to(x.dtype) * self.weight
        if self.rms:
            return kernels.rms_norm(x, self.weight, eps=self.eps)
        return kernels.layer_norm(x, self.weight, self.bias, eps=self.eps)


class Attention(nn.Module):
    """Self-attention with a fused QKV projection.

    The rows of the projection are grouped by key head: the group's query heads, then its key, then its value. This is
    Megatron's layout [heads, 3, head_dim], or Megatron-core's layout for grouped-query attention.
    """

    def __init__(self, model: Model, tp: TensorParallel, *, recompute: bool, enters: bool) -> None:
        super().__init__()
        self.model, self.tp, self.recompute, self.fused = model, tp, recompute, False
        self.groups = model.num_query_groups // tp.size
        self.shared = model.num_heads // model.num_query_groups
        width = model.head_dim * model.num_heads
        rows = model.head_dim * (model.num_heads + 2 * model.num_query_groups)
        self.query_key_value = ColumnParallelLinear(
            tp, model.hidden_size, rows, bias=model.attention_bias, init=model.init, enters=enters
        )
        self.enters = self.query_key_value.enters
        self.dense = RowParallelLinear(tp, width, model.hidden_size, bias=model.output_bias, init=model.output_init)

    def forward(self, x: torch.Tensor, context: AttentionContext, *, add_bias: bool = True) -> torch.Tensor:
        """Return [B, S, H] after the tensor-parallel region, from [B, S, H] before it (without ``enters``, inside).

        Without ``add_bias``, the caller must add the bias of the output layer.
        """
        if context.cache is not None and x.shape[1] == 1:
            # The heads that share a key head become its queries, so no key is repeated or copied.
            joined = self.query_key_value(x).view(len(x), self.groups, self.shared + 2, self.model.head_dim)
            query, key, value = joined.split((self.shared, 1, 1), 2)
            attended = self._core_attention(query, key, value, context, causal=False)
            return self.dense(attended.reshape(len(x), 1, -1), add_bias=add_bias)
        query, key, value = self._heads(x)
        if self.recompute and torch.is_grad_enabled():
            attended = checkpoint(
                self._core_attention, query, key, value, context,
                use_reentrant=False, preserve_rng_state=self.model.has_dropout,
            )  # fmt: skip
        else:
            attended = self._core_attention(query, key, value, context)
        return self.dense(attended.transpose(1, 2).flatten(2), add_bias=add_bias)

    def _heads(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return query [B, N, S, D], key and value [B, Nk, S, D]."""
        projection = self.query_key_value
        if self.fused:
            joined = projection(x, bias="detach")
            heads: tuple[torch.Tensor, ...] = kernels.split_qkv(
                joined, self.groups * self.shared, self.groups, projection.bias
            )
            return heads
        parts = projection(x).unflatten(2, (self.groups, self.shared + 2, self.model.head_dim))
        return tuple(each.flatten(2, 3).transpose(1, 2) for each in parts.split((self.shared, 1, 1), 3))

    def _core_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        context: AttentionContext,
        causal: bool = True,
    ) -> torch.Tensor:
        """Return [B, N, S, D] from query [B, N, S, D], key and value [B, Nk, S, D].

        For a single token with a cache the shapes are [B, Nk, N / Nk, D] from query [B, Nk, N / Nk, D].
        """
        if context.rotary is not None:
            cos, sin = context.rotary
            query, key = kernels.rotary(query, cos, sin, key=key)
        if context.cache is not None:
            key, value = context.cache.extend(self, key, value)
        masks: dict[str, Any] = {"causal": causal} if context.masked_out is None else {"masked_out": context.masked_out}
        if context.prefix is not None:
            masks = {"prefix": context.prefix}
        dropout_p = self.model.attention_dropout if self.training else 0.0
        if dropout_p == 0.0:
            return kernels.attention(query, key, value, **masks)
        with rank_rng(self.tp, query.device):
            return kernels.attention(query, key, value, dropout_p=dropout_p, **masks)


class MLP(nn.Module):
    """Feed-forward layer: two linear layers and an activation; gated activations add a third, ``gate``."""

    def __init__(self, model: Model, tp: TensorParallel, *, enters: bool = True) -> None:
        super().__init__()
        self.tp, self.activation, self.fused, self.enters = tp, model.activation, False, enters and tp.size > 1
        hidden, inner = model.hidden_size, model.ffn_hidden_size
        alone = enters and not model.gated
        if model.gated:
            self.gate = ColumnParallelLinear(tp, hidden, inner, bias=model.mlp_bias, init=model.init)
        self.dense_h_to_4h = ColumnParallelLinear(tp, hidden, inner, bias=model.mlp_bias, init=model.init, enters=alone)
        self.dense_4h_to_h = RowParallelLinear(tp, inner, hidden, bias=model.mlp_bias, init=model.output_init)

    def forward(self, x: torch.Tensor, *, add_bias: bool = True) -> torch.Tensor:
        """Return [B, S, H] after the tensor-parallel region, from [B, S, H] before it (without ``enters``, inside)."""
        if self.enters and not self.dense_h_to_4h.enters:
            x = self.tp.enter(x)  # one collective for both linear layers
        return self.dense_4h_to_h(self._activated(x), add_bias=add_bias)

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        if self.fused and self.activation in ("gelu", "gelu_tanh"):
            up = self.dense_h_to_4h(x, bias="leave")
            return self._gelu(up, self.dense_h_to_4h.bias)
        up = self.dense_h_to_4h(x)
        if self.activation == "swiglu":
            return kernels.swiglu(torch.cat([self.gate(x), up], -1))
        if self.activation == "geglu":
            return kernels.gelu(self.gate(x)) * up
        if self.activation == "relu":
            return functional.relu(up)
        if self.activation == "silu":
            return functional.silu(up)
        return self._gelu(up)

    def _gelu(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        result: torch.Tensor = kernels.gelu(x, bias, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        return result


class TransformerBlock(nn.Module):
    """Transformer layer: attention and MLP with residual connections, sequential or parallel."""

    def __init__(self, model: Model, tp: TensorParallel, *, recompute_attention: bool) -> None:
        super().__init__()
        self.model, self.tp, self.fused = model, tp, False
        self.input_norm = Norm(model, tp)
        # If attention and MLP share a norm, the block enters the tensor-parallel region once.
        enters = not model.shared_norm
        self.attention = Attention(model, tp, recompute=recompute_attention, enters=enters)
        if not model.shared_norm:
            self.post_attention_norm = Norm(model, tp)
        self.mlp = MLP(model, tp, enters=enters)

    def fuse(self, fused: bool) -> None:
        """Use kernels that fuse a linear layer with the operators around it, or plain operators."""
        self.fused = fused and not self.model.rms_eps_on_root
        self.attention.fused = fused
        self.mlp.fused = fused and self.model.mlp_bias

    def forward(
        self, x: torch.Tensor, context: AttentionContext, branch: Branch | None = None, *, defer: bool = False
    ) -> Any:
        """Apply the layer to [B, S, H], sharded along S under sequence parallelism.

        ``branch``, which the previous layer deferred, is added first, fused with the norm. With ``defer`` return (x,
        branch): the residual stream, and the branch that the next norm adds to it.
        """
        if branch is None:
            normed = self.input_norm(x)
        else:
            x, normed = self.input_norm(x, branch)
        if self.model.shared_norm:
            normed = self.tp.enter(normed)
        if self.model.parallel_residual:
            x, before = x + self._dropped(self.attention(normed, context)), x
            if not self.model.shared_norm:
                normed = self.post_attention_norm(before)
        elif self.fused:
            attended = self._branch(self.attention(normed, context, add_bias=False), self.attention.dense.bias)
            x, normed = self.post_attention_norm(x, attended)
        else:
            x = x + self._dropped(self.attention(normed, context))
            normed = self.post_attention_norm(x)
        if defer:
            return x, self._branch(self.mlp(normed, add_bias=False), self.mlp.dense_4h_to_h.bias)
        return x + self._dropped(self.mlp(normed))

    def _branch(self, value: torch.Tensor, bias: torch.Tensor | None) -> Branch:
        p = self.model.hidden_dropout if self.training else 0.0
        return Branch(value, bias, p, dropout_seed(self.tp, value.device) if p else None)

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        return dropout(x, self.model.hidden_dropout, self.tp, training=self.training)


def rotary_tables(
    model: Model, length: int, like: torch.Tensor, position_ids: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cos and sin tables of positions 0 to ``length`` - 1, [S, R]; rotated pairs are (i, i + R / 2).

    With ``position_ids`` [B, S], return the tables of these positions, [B, 1, S, R]. The tables are computed in fp32
    and rounded to the dtype of ``like``, as in GPT-NeoX and Megatron.
    """
    even = torch.arange(0, model.rotary_dim, 2, dtype=torch.float32, device=like.device)
    frequencies = 1.0 / model.rotary_base ** (even / model.rotary_dim)
    if position_ids is None:
        places = torch.arange(length, dtype=torch.float32, device=like.device)
    else:
        places = position_ids[:, None].float()
    angles = places[..., None] * frequencies
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)
