"""The definition of rotary, in plain torch."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.rotary import RotaryCall


def supports(call: RotaryCall) -> str:
    """Return "": the reference serves every call."""
    return ""


def run(call: RotaryCall) -> torch.Tensor:
    """Return the turned tensor."""
    x = call.x.to(torch.promote_types(call.x.dtype, torch.float32))
    if call.interleaved:
        across = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    else:
        first, second = x.chunk(2, -1)
        across = torch.cat([-second, first], -1)
    return (x * call.cos + across * call.sin).to(call.x.dtype)
