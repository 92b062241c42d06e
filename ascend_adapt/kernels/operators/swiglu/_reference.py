"""Reference of swiglu, in plain torch."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.operators.swiglu import SwigluCall


def supports(call: SwigluCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: SwigluCall) -> torch.Tensor:
    """Return the gated activation."""
    x = call.x.to(torch.promote_types(call.x.dtype, torch.float32))
    if call.bias is not None:
        x = x + call.bias
    gate, value = x.chunk(2, -1)
    return (torch.nn.functional.silu(gate) * value).to(call.x.dtype)
