"""GPT-NeoX's attention as one operation."""

from __future__ import annotations

import weakref
from typing import Any

from ascend_adapt import Symptom, wrap


@wrap(
    "megatron.model.transformer:ParallelSelfAttention.attention",
    host="gpt-neox",
    devices=("cuda", "npu"),
    why="it writes and reads all scores [B, N, S, S] several times, and keeps them for the gradient",
    until="GPT-NeoX has a fused attention for every device",
    without="slower",
    symptom=Symptom("torch.bmm(attention_probs, value_layer.transpose(0, 1))"),
)
def fused_attention(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the context [B, N, S, D] of query, key and value, each [S, B, N, D]; a mask is bool, True = not seen."""
    names = ("query_layer", "key_layer", "value_layer", "layer_past", "attention_mask")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if instance.use_cache or instance.rpe is not None or instance.pos_emb == "alibi":
        return wrapped(*args, **kwargs)
    from ascend_adapt.kernels import attention

    query, key, value = (given[name].permute(1, 2, 0, 3) for name in names[:3])
    masked_out, causal = given["attention_mask"], False
    if masked_out is not None and _is_causal(masked_out, query.shape[2], key.shape[2]):
        masked_out, causal = None, True
    softmax = instance.scale_mask_softmax
    dropout = instance.dropout_p if instance.training else 0.0

    def run() -> Any:
        return attention(
            query,
            key,
            value,
            masked_out=masked_out,
            causal=causal,
            scale=(softmax.scale or 1.0) / instance.norm_factor,
            dropout_p=dropout,
        )

    if not dropout:
        return run()
    from megatron import mpu

    with mpu.get_cuda_rng_tracker().fork():
        return run()


_causal_masks: dict[int, tuple[Any, int, bool]] = {}


def _is_causal(mask: Any, queries: int, keys: int) -> bool:
    """Return whether the mask hides just the future; it is read once, as all layers of a step get the same tensor."""
    import torch

    known = _causal_masks.get(id(mask))
    if known is not None and known[0]() is mask and known[1] == mask._version:
        return known[2]
    if tuple(mask.shape[-2:]) != (queries, keys) or mask.dtype != torch.bool:
        return False
    future = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).triu_(keys - queries + 1)
    answer = bool((mask == future).all())
    identity = id(mask)
    _causal_masks[identity] = (weakref.ref(mask, lambda _: _causal_masks.pop(identity, None)), mask._version, answer)
    return answer


PATCHES = (fused_attention,)
