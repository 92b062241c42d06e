"""Reference of gelu, in plain torch."""

from __future__ import annotations

import math

import torch

from ascend_adapt.kernels.operators.gelu import GeluCall


def supports(call: GeluCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: GeluCall) -> torch.Tensor:
    """Return the GELU."""
    x = call.x.to(torch.promote_types(call.x.dtype, torch.float32))
    if call.bias is not None:
        x = x + call.bias
    if call.approximate == "tanh":
        share = 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    else:
        share = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    return (x * share).to(call.x.dtype)
