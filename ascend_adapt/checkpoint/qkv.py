"""Row layouts of a fused QKV layer.

    grouped      each key head's queries, key and value, head by head. This is the canonical order. With as many key
                 heads as query heads it is [heads, 3, head_dim]: Megatron since checkpoint version 2, GPT-NeoX and
                 Hugging Face gpt_neox. With fewer key heads it is Megatron-core's order.
    block        all queries, then all keys, then all values: Megatron's checkpoint version 0, GLM, GPT-NeoX with
                 grouped-query attention, and Hugging Face gpt2. A tensor-parallel rank has the blocks of its heads.
    interleaved  [heads, head_dim, 3]: Megatron's checkpoint version 1

Sources: NVIDIA/Megatron-LM@v2.5 megatron/checkpointing.py fix_query_key_value_ordering; EleutherAI/gpt-neox@ea7aefd8
megatron/model/transformer.py gqa_project; THUDM/GLM@4f61ed72 change_mp.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

ORDERS = ("grouped", "block", "interleaved")


@dataclass(frozen=True)
class Heads:
    """Numbers of query heads and key heads in a tensor, and the head dimension."""

    queries: int
    keys: int
    dim: int

    def of_rank(self, ranks: int) -> Heads:
        """Return the number of heads on each of ``ranks`` tensor-parallel ranks."""
        return Heads(self.queries // ranks, self.keys // ranks, self.dim)


Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def separated(rows: torch.Tensor, heads: Heads, order: str = "grouped") -> Parts:
    """Return query, key and value, each [heads * dim, ...], of the fused ``rows`` [(queries + 2 keys) * dim, ...]."""
    rest = rows.shape[1:]
    if order == "block":
        query, key, value = rows.split([count * heads.dim for count in (heads.queries, heads.keys, heads.keys)])
    elif order == "interleaved":
        query, key, value = rows.reshape(-1, 3, *rest).unbind(1)
    else:
        groups = rows.reshape(heads.keys, -1, heads.dim, *rest)
        query, key, value = groups.split((heads.queries // heads.keys, 1, 1), 1)
    return query.reshape(-1, *rest), key.reshape(-1, *rest), value.reshape(-1, *rest)


def fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: Heads, order: str = "grouped"
) -> torch.Tensor:
    """Return the fused rows of query, key and value, each [heads * dim, ...]."""
    rest = query.shape[1:]
    if order == "block":
        return torch.cat([query, key, value])
    if order == "interleaved":
        return torch.stack([query, key, value], 1).reshape(-1, *rest)
    parts = [part.reshape(heads.keys, -1, heads.dim, *rest) for part in (query, key, value)]
    return torch.cat(parts, 1).reshape(-1, *rest)


def reordered(rows: torch.Tensor, heads: Heads, before: str, after: str) -> torch.Tensor:
    """Convert rows from one layout to another."""
    return rows if before == after else fused(*separated(rows, heads, before), heads, after)


def split_qkv(tensor: torch.Tensor, tp: int, *, layout: str = "block", num_heads: int) -> tuple[torch.Tensor, ...]:
    """Split a fused query-key-value weight or bias [3 * num_heads * head_dim, ...] over ``tp`` tensor-parallel ranks.

    ``tensor`` and each shard have the same ``layout``: "block" is [q; k; v] (GLM), "per_head" is [num_heads, 3,
    head_dim] (Megatron, GPT-NeoX).

    Raises:
        ValueError: the layout is unknown, or sizes are not divisible.
    """
    order, heads = _checked(layout, num_heads, tp, tensor.shape[0])
    pieces = reordered(tensor, heads, order, "grouped").chunk(tp)
    return tuple(reordered(piece, heads.of_rank(tp), "grouped", order).contiguous() for piece in pieces)


def merge_qkv(
    tensor: torch.Tensor | Sequence[torch.Tensor], tp: int, *, layout: str = "block", num_heads: int
) -> torch.Tensor:
    """Merge the shards of ``split_qkv``: a sequence of ``tp`` shards, or the shards concatenated along axis 0.

    Raises:
        ValueError: the layout is unknown, the number of shards is wrong, or sizes are not divisible.
    """
    shards = list(tensor.chunk(tp)) if isinstance(tensor, torch.Tensor) else list(tensor)
    if len(shards) != tp:
        raise ValueError(f"{len(shards)} shards, expected {tp}, one for each tensor-parallel rank")
    order, heads = _checked(layout, num_heads, tp, sum(shard.shape[0] for shard in shards))
    merged = torch.cat([reordered(shard, heads.of_rank(tp), order, "grouped") for shard in shards])
    return reordered(merged, heads, "grouped", order).contiguous()


def _checked(layout: str, num_heads: int, tp: int, rows: int) -> tuple[str, Heads]:
    orders = {"block": "block", "per_head": "grouped"}
    if layout not in orders:
        raise ValueError(f"layout: {layout!r}, expected one of {', '.join(orders)}")
    if num_heads % tp or rows % (3 * num_heads):
        raise ValueError(
            f"{rows} rows, {num_heads} heads and {tp} ranks, expected rows divisible by 3 * heads, and heads by ranks"
        )
    return orders[layout], Heads(num_heads, num_heads, rows // (3 * num_heads))
