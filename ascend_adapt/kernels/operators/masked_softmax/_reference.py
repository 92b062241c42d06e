"""Reference of masked_softmax, in plain torch."""

from __future__ import annotations

import torch

from ascend_adapt.kernels import masks
from ascend_adapt.kernels.operators.masked_softmax import EXACT, FILL, FINITE_ZEROED, MaskedSoftmaxCall


def supports(call: MaskedSoftmaxCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: MaskedSoftmaxCall) -> torch.Tensor:
    """Return the probabilities."""
    x = call.x
    scores = x.to(torch.promote_types(x.dtype, torch.float32)) * call.scale
    if call.masked_out is not None:
        scores = scores.masked_fill(call.masked_out, float("-inf") if call.fill == EXACT else FILL)
    if call.causal:
        queries, keys = x.shape[-2:]
        late = masks.hidden(
            slice(0, queries), slice(0, keys), keys - queries, causal=True, window=None, device=x.device
        )
        scores = scores.masked_fill(late, float("-inf"))
    probabilities = softmax(scores)
    if call.fill == FINITE_ZEROED:
        probabilities = probabilities.masked_fill(scores.amax(-1, keepdim=True) == FILL, 0.0)
    return probabilities.to(x.dtype)


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """Return the softmax of each row. A row of minus infinity gives zeros, and zero gradients."""
    nothing = (scores == float("-inf")).all(-1, keepdim=True)
    return scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
