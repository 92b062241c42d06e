"""Hugging Face gpt2: weights are [in, out]; query, key and value are separate blocks.

Source: transformers 5.24.0 models/gpt2/modeling_gpt2.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ascend_adapt.checkpoint.canonical import HEAD, POSITIONS, WORDS, heads
from ascend_adapt.checkpoint.hugging_face.settings import ACTIVATION_NAMES, activation, require
from ascend_adapt.checkpoint.qkv import reordered
from ascend_adapt.checkpoint.source import Rule, Tensors
from ascend_adapt.config.model_config import Model

ARCHITECTURE = "GPT2LMHeadModel"
_BLOCK = {
    "input_norm": "ln_1",
    "attention.query_key_value": "attn.c_attn",
    "attention.dense": "attn.c_proj",
    "post_attention_norm": "ln_2",
    "mlp.dense_h_to_4h": "mlp.c_fc",
    "mlp.dense_4h_to_h": "mlp.c_proj",
}


def to_model(config: Mapping[str, Any]) -> Model:
    """Return the model that config.json describes.

    Raises:
        Unsupported: the native model does not support a setting.
    """
    require(
        {
            "scale_attn_weights": (config.get("scale_attn_weights", True), True),
            "scale_attn_by_inverse_layer_idx": (config.get("scale_attn_by_inverse_layer_idx", False), False),
            "add_cross_attention": (config.get("add_cross_attention", False), False),
        }
    )
    hidden, count = config["n_embd"], config["n_head"]
    return Model(
        vocab_size=config["vocab_size"],
        padded_vocab_size=config["vocab_size"],
        hidden_size=hidden,
        num_layers=config["n_layer"],
        num_heads=count,
        num_query_groups=count,
        head_dim=hidden // count,
        ffn_hidden_size=config.get("n_inner") or 4 * hidden,
        max_positions=config.get("n_positions") or config["n_ctx"],
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        activation=activation(config.get("activation_function", "gelu_new")),
        tied_embeddings=config.get("tie_word_embeddings", True),
        hidden_dropout=config.get("resid_pdrop", 0.1),
        attention_dropout=config.get("attn_pdrop", 0.1),
    )


def to_config(model: Model) -> dict[str, Any]:
    """Return the content of config.json for a model.

    Raises:
        Unsupported: gpt2 cannot express the model.
    """
    require(
        {
            "positions": (model.positions, "learned"),
            "norm": (model.norm, "layernorm"),
            "parallel_residual": (model.parallel_residual, False),
            "gated": (model.gated, False),
            "num_query_groups": (model.num_query_groups, model.num_heads),
            "head_dim": (model.head_dim * model.num_heads, model.hidden_size),
            "biases": ((model.attention_bias, model.output_bias, model.mlp_bias), (True, True, True)),
        }
    )
    return {
        "model_type": "gpt2",
        "vocab_size": model.padded_vocab_size,
        "n_positions": model.max_positions,
        "n_ctx": model.max_positions,
        "n_embd": model.hidden_size,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "n_inner": model.ffn_hidden_size,
        "activation_function": ACTIVATION_NAMES[model.activation],
        "layer_norm_epsilon": model.norm_eps,
        "resid_pdrop": model.hidden_dropout,
        "embd_pdrop": model.hidden_dropout,
        "attn_pdrop": model.attention_dropout,
        "tie_word_embeddings": model.tied_embeddings,
    }


def rules(model: Model) -> Iterator[Rule]:
    """Yield the rules in model order."""

    def inward(tensors: Tensors) -> Tensors:
        return [reordered(tensors[0].T if tensors[0].dim() > 1 else tensors[0], heads(model), "block", "grouped")]

    def outward(tensors: Tensors) -> Tensors:
        rows = reordered(tensors[0], heads(model), "grouped", "block")
        return [rows.T if rows.dim() > 1 else rows]

    yield Rule((WORDS,), ("transformer.wte.weight",))
    yield Rule((POSITIONS,), ("transformer.wpe.weight",))
    for number in range(model.num_layers):
        for ours, theirs in _BLOCK.items():
            for kind in ("weight", "bias"):
                names = ((f"layers.{number}.{ours}.{kind}",), (f"transformer.h.{number}.{theirs}.{kind}",))
                if ours == "attention.query_key_value":
                    yield Rule(*names, inward, outward)
                elif kind == "weight" and "norm" not in ours:
                    yield Rule(*names, _transposed, _transposed)
                else:
                    yield Rule(*names)
    for kind in ("weight", "bias"):
        yield Rule((f"final_norm.{kind}",), (f"transformer.ln_f.{kind}",))
    if not model.tied_embeddings:
        yield Rule((HEAD,), ("lm_head.weight",))


def _transposed(tensors: Tensors) -> list[torch.Tensor]:
    return [tensor.T for tensor in tensors]
