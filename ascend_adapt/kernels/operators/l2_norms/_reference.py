"""Reference of l2_norms, in plain torch, one tensor at a time."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.operators.l2_norms import L2NormsCall


def supports(call: L2NormsCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: L2NormsCall) -> torch.Tensor:
    """Return the norms."""
    exact = torch.promote_types(call.tensors[0].dtype, torch.float32)
    return torch.stack([each.to(exact).square().sum().sqrt() for each in call.tensors])
