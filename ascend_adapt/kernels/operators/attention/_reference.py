"""Reference of attention, in plain torch. Unlike other backends, it computes all scores at once."""

from __future__ import annotations

import torch

from ascend_adapt.kernels import masks
from ascend_adapt.kernels.operators.attention import AttentionCall, _pieces
from ascend_adapt.kernels.operators.masked_softmax._reference import softmax


def supports(call: AttentionCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: AttentionCall) -> torch.Tensor:
    """Return the attention output."""
    call = _pieces.masked_by_prefix(call)
    q, k, v = call.q, call.k, call.v
    exact = torch.promote_types(q.dtype, torch.float32)
    shared = q.shape[1] // k.shape[1]
    key, value = (each.to(exact).repeat_interleave(shared, 1) for each in (k, v))
    scores = q.to(exact) @ key.transpose(-1, -2) * call.factor
    if call.bias is not None:
        scores = scores + call.bias
    if call.masked_out is not None:
        scores = scores.masked_fill(call.masked_out, float("-inf"))
    queries, keys = scores.shape[-2:]
    if call.causal:
        late = masks.hidden(
            slice(0, queries), slice(0, keys), keys - queries, causal=True, window=call.window, device=q.device
        )
        scores = scores.masked_fill(late, float("-inf"))
    if call.cu_seqlens is not None:
        document = masks.documents(call.cu_seqlens, keys)
        scores = scores.masked_fill(document[:, None] != document[None, :], float("-inf"))
    probabilities = torch.nn.functional.dropout(softmax(scores), call.dropout_p)
    return (probabilities @ value).to(q.dtype)
