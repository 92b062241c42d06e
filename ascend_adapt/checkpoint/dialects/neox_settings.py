"""GPT-NeoX settings: the keys of its configuration that describe a model.

Source: EleutherAI/gpt-neox@9610391a and @ea7aefd8 megatron/neox_arguments/neox_args.py.
"""

from __future__ import annotations

from typing import Any

from ascend_adapt.checkpoint.writing import Output
from ascend_adapt.errors import CheckpointError


def neox_settings(output: Output) -> dict[str, Any]:
    """Return the keys of GPT-NeoX's configuration that describe a model and its parallel sizes.

    Raises:
        CheckpointError: this version of GPT-NeoX cannot express the model.
    """
    model, newest = output.model, output.version != "v2.0"
    problems = []
    if model.head_dim * model.num_heads != model.hidden_size:
        problems.append(f"head dimension {model.head_dim}")
    if model.output_bias != model.attention_bias:
        problems.append("biases in only part of the attention")
    if not newest and (model.gated or model.num_query_groups != model.num_heads or not model.mlp_bias):
        problems.append("a gated MLP, grouped-query attention or layers without bias")
    if model.norm == "rmsnorm" and model.rms_eps_on_root == newest:
        problems.append(f"RMSNorm with epsilon {'inside' if not newest else 'outside'} the square root")
    if model.activation == "geglu" or (model.activation not in ("gelu", "gelu_tanh", "relu", "swiglu") and not newest):
        problems.append(f"activation {model.activation}")
    wide = model.ffn_hidden_size != 4 * model.hidden_size
    if wide and not newest:
        problems.append(f"MLP width {model.ffn_hidden_size}")
    if problems:
        raise CheckpointError(f"GPT-NeoX {output.version or 'newest'}: cannot express {'; '.join(problems)}")
    own: dict[str, Any] = {}
    if newest:
        own = {"use_bias_in_attn_linear": model.attention_bias, "use_bias_in_mlp": model.mlp_bias}
        own |= {"num_kv_heads": model.num_query_groups} if model.num_query_groups != model.num_heads else {}
        if model.gated:
            own["intermediate_size"] = 3 * model.ffn_hidden_size
        elif wide:
            own["intermediate_size"] = model.ffn_hidden_size
    epsilon = "rms_norm_epsilon" if model.norm == "rmsnorm" else "layernorm_epsilon"
    return {
        "pipe_parallel_size": output.pipeline,
        "model_parallel_size": output.tensor,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_heads,
        "max_position_embeddings": model.max_positions,
        "pos_emb": model.positions,
        "rotary_pct": model.rotary_fraction,
        "rotary_emb_base": int(model.rotary_base),
        "no_weight_tying": not model.tied_embeddings,
        "gpt_j_residual": model.parallel_residual,
        "gpt_j_tied": model.shared_norm,
        "norm": model.norm,
        epsilon: model.norm_eps,
        "activation": model.activation.removesuffix("_tanh"),
        "bias_gelu_fusion": model.activation == "gelu_tanh",
        "output_layer_parallelism": "column",
        **own,
    }
