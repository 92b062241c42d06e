"""Reference of rotary, in plain torch."""

from __future__ import annotations

from typing import Any

import torch

from ascend_adapt.kernels.operators.rotary import RotaryCall


def supports(call: RotaryCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: RotaryCall) -> Any:
    """Return the rotated x, or (x, key)."""
    return _one(call.x, call) if call.key is None else (_one(call.x, call), _one(call.key, call))


def _one(given: torch.Tensor, call: RotaryCall) -> torch.Tensor:
    x = turning(given, call).to(torch.promote_types(given.dtype, torch.float32))
    if call.interleaved:
        across = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    else:
        first, second = x.chunk(2, -1)
        across = torch.cat([-second, first], -1)
    return with_the_rest((x * call.cos + across * call.sin).to(given.dtype), given)


def turning(x: torch.Tensor, call: RotaryCall) -> torch.Tensor:
    """Return the part of x that is rotated, [..., R]."""
    return x[..., : call.cos.shape[-1]]


def with_the_rest(turned: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the rotated part followed by the unchanged part of x, [..., D]."""
    rest = x[..., turned.shape[-1] :]
    return torch.cat([turned, rest], -1) if rest.shape[-1] else turned
