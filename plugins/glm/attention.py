"""Fused self-attention for GLM, with all of its masks: separator, causal, memory."""

from __future__ import annotations

import weakref
from typing import Any

from ascend_adapt import Call, Symptom, wrap

from .. import call_arguments
from ..fused_attention import attention_with_dropout


@wrap(
    "mpu.transformer:ParallelSelfAttention.forward",
    bodies="65b987470234e761",
    host="glm",
    devices=("cuda", "npu"),
    why="unfused attention reads and writes all scores [B, N, S, S] several times and keeps them for the backward pass",
    until="GLM has a fused attention for every device",
    without="slower",
    symptom=Symptom("torch.matmul(attention_probs, value_layer)"),
)
def fused_attention(call: Call) -> Any:
    """Return the layer's output [B, S, H]; the mask [B or 1, 1, S, M + S] is float, 1 = visible, M memory length.

    ``attention_scale`` only guards fp16 scores against overflow; the softmax does not depend on it.
    """
    names = ("hidden_states", "ltor_mask", "position_embeddings", "r_w_bias", "r_r_bias", "mem")
    given = call_arguments.known(names, call)
    layer = call.instance
    if given is None or layer.relative_encoding or layer.performer:
        return call.proceed()
    import torch

    hidden, memory = given["hidden_states"], given.get("mem")
    mixed = layer.query_key_value(hidden if memory is None else torch.cat((memory, hidden), 1))
    query, key, value = (
        one.unflatten(-1, (layer.num_attention_heads_per_partition, -1)).transpose(1, 2)
        for one in mixed.chunk(3, dim=-1)
    )
    if memory is not None:
        query = query[:, :, -hidden.shape[1] :]
    dropout = layer.attention_dropout.p if layer.training else 0.0
    context = attention_with_dropout(
        query, key, value, masked_out=_masked_out(given["ltor_mask"]), dropout_p=dropout, rng="mpu.transformer"
    )
    return layer.output_dropout(layer.dense(context.transpose(1, 2).flatten(2)))


_inverted: dict[int, tuple[Any, int, Any]] = {}


def _masked_out(seen: Any) -> Any:
    """Return a bool mask of the hidden positions, cached because all layers of a step get the same tensor."""
    known = _inverted.get(id(seen))
    if known is not None and known[0]() is seen and known[1] == seen._version:
        return known[2]
    answer, identity = seen < 0.5, id(seen)
    _inverted[identity] = (weakref.ref(seen, lambda _: _inverted.pop(identity, None)), seen._version, answer)
    return answer
