"""Hugging Face gpt_neox: GPT-NeoX-20B and Pythia. The QKV row layout is GPT-NeoX's.

Source: transformers 5.24.0 models/gpt_neox/modeling_gpt_neox.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ascend_adapt.checkpoint.canonical import HEAD, WORDS
from ascend_adapt.checkpoint.hugging_face.settings import ACTIVATION_NAMES, activation, require, rotary
from ascend_adapt.checkpoint.source import Rule
from ascend_adapt.config.model_config import Model

ARCHITECTURE = "GPTNeoXForCausalLM"
_BLOCK = {
    "input_norm": "input_layernorm",
    "attention.query_key_value": "attention.query_key_value",
    "attention.dense": "attention.dense",
    "post_attention_norm": "post_attention_layernorm",
    "mlp.dense_h_to_4h": "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h": "mlp.dense_4h_to_h",
}


def to_model(config: Mapping[str, Any]) -> Model:
    """Return the model that config.json describes.

    Raises:
        Unsupported: the native model does not support a setting.
    """
    hidden, count, bias = config["hidden_size"], config["num_attention_heads"], config.get("attention_bias", True)
    base, fraction = rotary({"rotary_pct": 0.25, **config})
    return Model(
        vocab_size=config["vocab_size"],
        padded_vocab_size=config["vocab_size"],
        hidden_size=hidden,
        num_layers=config["num_hidden_layers"],
        num_heads=count,
        num_query_groups=count,
        head_dim=hidden // count,
        ffn_hidden_size=config["intermediate_size"],
        max_positions=config["max_position_embeddings"],
        positions="rotary",
        rotary_fraction=fraction,
        rotary_base=base,
        parallel_residual=config.get("use_parallel_residual", True),
        norm_eps=config.get("layer_norm_eps", 1e-5),
        activation=activation(config.get("hidden_act", "gelu")),
        tied_embeddings=config.get("tie_word_embeddings", False),
        attention_bias=bias,
        output_bias=bias,
        hidden_dropout=config.get("hidden_dropout", 0.0),
        attention_dropout=config.get("attention_dropout", 0.0),
    )


def to_config(model: Model) -> dict[str, Any]:
    """Return the content of config.json for a model.

    Raises:
        Unsupported: gpt_neox cannot express the model.
    """
    require(
        {
            "positions": (model.positions, "rotary"),
            "norm": (model.norm, "layernorm"),
            "gated": (model.gated, False),
            "num_query_groups": (model.num_query_groups, model.num_heads),
            "head_dim": (model.head_dim * model.num_heads, model.hidden_size),
            "biases": ((model.output_bias, model.mlp_bias), (model.attention_bias, True)),
        }
    )
    return {
        "model_type": "gpt_neox",
        "vocab_size": model.padded_vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.ffn_hidden_size,
        "max_position_embeddings": model.max_positions,
        "hidden_act": ACTIVATION_NAMES[model.activation],
        "rotary_pct": model.rotary_fraction,
        "rotary_emb_base": model.rotary_base,
        "use_parallel_residual": model.parallel_residual,
        "layer_norm_eps": model.norm_eps,
        "attention_bias": model.attention_bias,
        "hidden_dropout": model.hidden_dropout,
        "attention_dropout": model.attention_dropout,
        "tie_word_embeddings": model.tied_embeddings,
    }


def rules(model: Model) -> Iterator[Rule]:
    """Yield the rules in model order. A norm shared by attention and MLP is written twice."""
    yield Rule((WORDS,), ("gpt_neox.embed_in.weight",))
    without = ("attention.query_key_value", "attention.dense") if not model.attention_bias else ()
    for number in range(model.num_layers):
        ours, theirs = f"layers.{number}", f"gpt_neox.layers.{number}"
        for name, called in _BLOCK.items():
            if model.shared_norm and name == "post_attention_norm":
                continue
            for kind in ("weight",) if name in without else ("weight", "bias"):
                keys: tuple[str, ...] = (f"{theirs}.{called}.{kind}",)
                if model.shared_norm and name == "input_norm":
                    keys += (f"{theirs}.{_BLOCK['post_attention_norm']}.{kind}",)
                    yield Rule(
                        (f"{ours}.{name}.{kind}",), keys, lambda given: given[:1], lambda given: [given[0], given[0]]
                    )
                    continue
                yield Rule((f"{ours}.{name}.{kind}",), keys)
    for kind in ("weight", "bias"):
        yield Rule((f"final_norm.{kind}",), (f"gpt_neox.final_layer_norm.{kind}",))
    if not model.tied_embeddings:
        yield Rule((HEAD,), ("embed_out.weight",))
