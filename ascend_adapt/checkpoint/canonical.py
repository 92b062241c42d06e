"""Canonical state: every parameter of a model with a fixed name and layout, in model order.

Names, shapes and row orders are those of the native trainer (``ascend_adapt.native.model``) on one rank; a test
compares them with its modules. Linear weights are [out, in].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ascend_adapt.checkpoint.qkv import Heads
from ascend_adapt.config.model_config import Model

WORDS, POSITIONS, HEAD = "embedding.words.weight", "embedding.positions.weight", "head.weight"
BLOCK_POSITIONS = "embedding.block_positions.weight"
QUERY_KEY_VALUE = "attention.query_key_value"
ROW_PARALLEL = ("attention.dense", "mlp.dense_4h_to_h")


@dataclass(frozen=True)
class Parameter:
    """A parameter; ``cut`` is the axis that is split over tensor-parallel ranks, None for a replicated parameter."""

    name: str
    shape: tuple[int, ...]
    cut: int | None = None


def layer_name(number: int, local: str) -> str:
    """Return the name of a block's parameter."""
    return f"layers.{number}.{local}"


def local_name(name: str) -> tuple[int | None, str]:
    """Return a parameter's block number and its name inside the block; None and the full name if it is in no block."""
    if not name.startswith("layers."):
        return None, name
    _, number, local = name.split(".", 2)
    return int(number), local


def parameters(model: Model) -> Iterator[Parameter]:
    """Yield the parameters of a model in model order."""
    yield Parameter(WORDS, (model.padded_vocab_size, model.hidden_size), 0)
    for name in (POSITIONS, BLOCK_POSITIONS)[: model.position_tables]:
        yield Parameter(name, (model.max_positions, model.hidden_size))
    block = list(_block(model))
    for number in range(model.num_layers):
        for one in block:
            yield Parameter(layer_name(number, one.name), one.shape, one.cut)
    yield from _norm(model, "final_norm")
    if not model.tied_embeddings:
        yield Parameter(HEAD, (model.padded_vocab_size, model.hidden_size), 0)


def heads(model: Model) -> Heads:
    """Return the attention heads of a model."""
    return Heads(model.num_heads, model.num_query_groups, model.head_dim)


def _block(model: Model) -> Iterator[Parameter]:
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    rows = model.head_dim * (model.num_heads + 2 * model.num_query_groups)
    yield from _norm(model, "input_norm")
    yield from _linear(QUERY_KEY_VALUE, rows, hidden, 0, has_bias=model.attention_bias)
    yield from _linear("attention.dense", hidden, model.head_dim * model.num_heads, 1, has_bias=model.output_bias)
    if not model.shared_norm:
        yield from _norm(model, "post_attention_norm")
    if model.gated:
        yield from _linear("mlp.gate", ffn, hidden, 0, has_bias=model.mlp_bias)
    yield from _linear("mlp.dense_h_to_4h", ffn, hidden, 0, has_bias=model.mlp_bias)
    yield from _linear("mlp.dense_4h_to_h", hidden, ffn, 1, has_bias=model.mlp_bias)


def _norm(model: Model, name: str) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (model.hidden_size,))
    if model.norm == "layernorm":
        yield Parameter(f"{name}.bias", (model.hidden_size,))


def _linear(name: str, rows: int, columns: int, cut: int, *, has_bias: bool) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (rows, columns), cut)
    if has_bias:
        yield Parameter(f"{name}.bias", (rows,), 0 if cut == 0 else None)
