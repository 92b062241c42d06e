"""Reference of layer_norm, in plain torch."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.operators.layer_norm import LayerNormCall


def supports(call: LayerNormCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: LayerNormCall) -> torch.Tensor:
    """Return the normalised tensor."""
    x = call.x.to(torch.promote_types(call.x.dtype, torch.float32))
    centred = x - x.mean(-1, keepdim=True)
    result = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + call.eps)
    if call.weight is not None:
        result = result * call.weight
    if call.bias is not None:
        result = result + call.bias
    return result.to(call.x.dtype)
