"""Reference of norms, in plain torch, one tensor at a time."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.operators.norms import NormsCall


def supports(call: NormsCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: NormsCall) -> torch.Tensor:
    """Return the norms."""
    exact = torch.promote_types(call.tensors[0].dtype, torch.float32)
    return torch.stack([each.to(exact).square().sum().sqrt() for each in call.tensors])
