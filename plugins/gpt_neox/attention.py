"""Fused attention for GPT-NeoX, which also replaces "flash" in attention_config."""

from __future__ import annotations

import logging
from typing import Any

from ascend_adapt import Call, Symptom, wrap

from .. import call_arguments
from ..fused_attention import attention_with_dropout

logger = logging.getLogger("ascend_adapt")


@wrap(
    "megatron.model.transformer:ParallelSelfAttention.attention",
    bodies="acd0544d5f8b0f78",
    host="gpt-neox",
    devices=("cuda", "npu"),
    why="unfused attention reads and writes all scores [B, N, S, S] several times and keeps them for the backward pass",
    until="GPT-NeoX has a fused attention for every device",
    without="slower",
    symptom=Symptom("torch.bmm(attention_probs, value_layer.transpose(0, 1))"),
)
def fused_attention(call: Call) -> Any:
    """Attention context [B, N, S, D] of query, key and value, each [S, B, N, D]; the mask is bool, True = hidden."""
    names = ("query_layer", "key_layer", "value_layer", "layer_past", "attention_mask")
    given = call_arguments.known(names, call)
    attention = call.instance
    if given is None or attention.use_cache or attention.rpe is not None or attention.pos_emb == "alibi":
        return call.proceed()
    from ascend_adapt.kernels.masks import is_causal

    query, key, value = (given[name].permute(1, 2, 0, 3) for name in names[:3])
    masked_out, causal = given["attention_mask"], False
    if masked_out is not None and is_causal(masked_out, query.shape[2], key.shape[2]):
        masked_out, causal = None, True
    softmax = attention.scale_mask_softmax
    dropout = attention.dropout_p if attention.training else 0.0

    return attention_with_dropout(
        query,
        key,
        value,
        masked_out=masked_out,
        causal=causal,
        scale=(softmax.scale or 1.0) / attention.norm_factor,
        dropout_p=dropout,
        rng="megatron.mpu",
    )


@wrap(
    "megatron.utils:expand_attention_types",
    host="gpt-neox",
    devices=("cpu", "npu"),
    why='"flash" in attention_config needs flash_attn, which only supports GPUs: PackageNotFoundError',
    until="flash_attn, or GPT-NeoX's use of it, runs on every device",
    without="crash",
    symptom=Symptom("self.attention_type == 'flash'", at="megatron.model.transformer:ParallelSelfAttention.__init__"),
)
def flash_attention_as_global(call: Call) -> Any:
    """Return the attention type of each layer, with "flash" replaced by "global", which is the same attention.

    ``fused_attention`` computes global attention in one operation. With mup, the two types differ in GPT-NeoX: flash
    ignores mup's scale 1 / D, global uses it.
    """
    types = call.proceed()
    if "flash" not in types:
        return types
    logger.info('ascend_adapt: attention_config: "flash" is not available on this device, using "global"')
    return ["global" if one == "flash" else one for one in types]
