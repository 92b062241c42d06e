"""Hugging Face llama, mistral and qwen2: RMSNorm, gated MLP, rotary embedding, grouped-query attention.

Sources: transformers 5.24.0 models/{llama,mistral,qwen2}/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ascend_adapt.checkpoint.canonical import HEAD, WORDS, heads
from ascend_adapt.checkpoint.hugging_face.settings import require, rotary
from ascend_adapt.checkpoint.qkv import fused, separated
from ascend_adapt.checkpoint.source import Rule, Tensors
from ascend_adapt.config.model_config import Model

ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_BLOCK = {
    "input_norm": "input_layernorm",
    "attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.dense_h_to_4h": "mlp.up_proj",
    "mlp.dense_4h_to_h": "mlp.down_proj",
}


def to_model(config: Mapping[str, Any]) -> Model:
    """Return the model that config.json describes.

    The model's maximum position is limited to the sliding window, so that the window never takes effect.

    Raises:
        Unsupported: the native model does not support a setting.
    """
    kind, hidden, count = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    require({"hidden_act": (config.get("hidden_act", "silu"), "silu")})
    base, fraction = rotary(config)
    bias = kind == "qwen2" or (kind == "llama" and config.get("attention_bias", False))
    window = sliding_window(config)
    positions = config["max_position_embeddings"]
    return Model(
        vocab_size=config["vocab_size"],
        padded_vocab_size=config["vocab_size"],
        hidden_size=hidden,
        num_layers=config["num_hidden_layers"],
        num_heads=count,
        num_query_groups=config.get("num_key_value_heads") or count,
        head_dim=config.get("head_dim") or hidden // count,
        ffn_hidden_size=config["intermediate_size"],
        max_positions=min(positions, window) if window else positions,
        positions="rotary",
        rotary_fraction=fraction,
        rotary_base=base,
        norm="rmsnorm",
        norm_eps=config.get("rms_norm_eps", 1e-6),
        activation="swiglu",
        tied_embeddings=config.get("tie_word_embeddings", False),
        attention_bias=bias,
        output_bias=bias and kind != "qwen2",
        mlp_bias=kind == "llama" and config.get("mlp_bias", False),
        hidden_dropout=0.0,
        attention_dropout=config.get("attention_dropout", 0.0),
    )


def sliding_window(config: Mapping[str, Any]) -> int | None:
    """Return the sliding window in tokens, or None for full attention."""
    is_used = config.get("use_sliding_window", config["model_type"] == "mistral")
    window = config.get("sliding_window") if is_used else None
    return int(window) if window else None


def to_config(model: Model) -> dict[str, Any]:
    """Return the content of config.json for a model, as llama, or as qwen2 if only query, key and value have biases.

    Raises:
        Unsupported: neither architecture can express the model.
    """
    require(
        {
            "positions": (model.positions, "rotary"),
            "rotary_fraction": (model.rotary_dim, model.head_dim),
            "norm": (model.norm, "rmsnorm"),
            "rms_eps_on_root": (model.rms_eps_on_root, False),
            "parallel_residual": (model.parallel_residual, False),
            "activation": (model.activation, "swiglu"),
        }
    )
    is_qwen2 = model.attention_bias and not model.output_bias
    if is_qwen2:
        require(
            {
                "mlp_bias": (model.mlp_bias, False),
                "head_dim": (model.head_dim * model.num_heads, model.hidden_size),
            }
        )
        own: dict[str, Any] = {"use_sliding_window": False}
    else:
        require({"output_bias": (model.output_bias, model.attention_bias)})
        own = {"attention_bias": model.attention_bias, "mlp_bias": model.mlp_bias, "head_dim": model.head_dim}
    return {
        "model_type": "qwen2" if is_qwen2 else "llama",
        "vocab_size": model.padded_vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_query_groups,
        "max_position_embeddings": model.max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rotary_base,
        "attention_dropout": model.attention_dropout,
        "tie_word_embeddings": model.tied_embeddings,
        **own,
    }


def rules(model: Model) -> Iterator[Rule]:
    """Yield the rules in model order."""

    def inward(tensors: Tensors) -> Tensors:
        query, key, value = tensors
        return [fused(query, key, value, heads(model))]

    def outward(tensors: Tensors) -> Tensors:
        return separated(tensors[0], heads(model))

    biased = {
        "attention.query_key_value": model.attention_bias,
        "attention.dense": model.output_bias,
        **dict.fromkeys(("mlp.gate", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), model.mlp_bias),
    }
    yield Rule((WORDS,), ("model.embed_tokens.weight",))
    for number in range(model.num_layers):
        for name, called in _BLOCK.items():
            for kind in ("weight", "bias") if biased.get(name, False) else ("weight",):
                ours = (f"layers.{number}.{name}.{kind}",)
                if isinstance(called, tuple):
                    keys = tuple(f"model.layers.{number}.{one}.{kind}" for one in called)
                    yield Rule(ours, keys, inward, outward)
                else:
                    yield Rule(ours, (f"model.layers.{number}.{called}.{kind}",))
    yield Rule(("final_norm.weight",), ("model.norm.weight",))
    if not model.tied_embeddings:
        yield Rule((HEAD,), ("lm_head.weight",))
