"""Attention of deepspeedai's fork: fixes views that torch rejects, and fuses the attention on GPUs and NPUs."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap

from .. import call_arguments
from ..code_bases import MEGATRON_DEEPSPEED
from ..fused_attention import attention_with_dropout

TARGET = "megatron.model.transformer:CoreAttention.forward"
VIEWED = ("query_layer", "key_layer", "value_layer")


@wrap(
    TARGET,
    host=MEGATRON_DEEPSPEED,
    why="it takes views of non-contiguous query, key and value tensors, which torch rejects",
    until="the code base uses reshape",
    without="crash",
    symptom=Symptom("query_layer.view(output_size[2], output_size[0] * output_size[1], -1)"),
)
def contiguous_attention(call: Call) -> Any:
    """Attention of query, key and value [S, B, N, D], each made contiguous."""
    values = [value.contiguous() if place < len(VIEWED) else value for place, value in enumerate(call.args)]
    named = {name: value.contiguous() if name in VIEWED else value for name, value in call.kwargs.items()}
    return call.wrapped(*values, **named)


@wrap(
    TARGET,
    bodies="fc89ea5eafac0313",
    host=MEGATRON_DEEPSPEED,
    devices=("cuda", "npu"),
    why="unfused attention reads and writes all scores [B, N, S, S] several times and keeps them for the backward pass",
    until="the code base calls a fused attention on every device",
    without="slower",
    symptom=Symptom("torch.bmm(attention_probs, value_layer.transpose(0, 1))"),
)
def fused_attention(call: Call) -> Any:
    """Fused attention; query, key and value are [S, B, N, D], the result is [S, B, N * D]."""
    from ascend_adapt.kernels.masks import is_causal

    given = call_arguments.known((*VIEWED, "attention_mask"), call)
    if given is None:
        return call.proceed()
    attention = call.instance
    query, key, value = (given[name].permute(1, 2, 0, 3) for name in VIEWED)
    mask, causal = given["attention_mask"], attention.attn_mask_type.name == "causal"
    if causal and mask is not None and is_causal(mask, query.shape[2], key.shape[2]):
        mask = None
    # norm_factor includes the layer number if the softmax multiplies by it.
    scale = (attention.scale_mask_softmax.scale or 1.0) / attention.norm_factor
    dropout = attention.attention_dropout.p if attention.training else 0.0
    rng = None if attention.sequence_parallel else "megatron.core.tensor_parallel"
    result = attention_with_dropout(
        query, key, value, masked_out=mask, causal=causal, scale=scale, dropout_p=dropout, rng=rng
    )
    # Contiguous like upstream's result, because the next layer takes a view; flash attention's result is [B, S, N, D]
    # in memory.
    return result.permute(2, 0, 1, 3).flatten(2).contiguous()
