"""GELU with torch's gelu."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.operators.gelu import GeluCall


def supports(call: GeluCall) -> str:
    """Return "" or why torch would round between the sum and the GELU."""
    if call.bias is not None and call.x.dtype not in (torch.float32, torch.float64):
        return f"the sum with the bias would be rounded to {str(call.x.dtype).removeprefix('torch.')}"
    return ""


def run(call: GeluCall) -> torch.Tensor:
    """Return the GELU."""
    x = call.x if call.bias is None else call.x + call.bias
    return torch.nn.functional.gelu(x, approximate=call.approximate).to(call.x.dtype)
