"""Reference of bias_dropout_add, in plain torch."""

from __future__ import annotations

from typing import Any

import torch

from ascend_adapt.kernels.operators.bias_dropout_add import BiasDropoutAddCall


def supports(call: BiasDropoutAddCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: BiasDropoutAddCall) -> torch.Tensor:
    """Return the sum."""
    return total(call.x, call.branch, call.bias, call.dropout_p, call.seed).to(call.x.dtype)


def total(x: torch.Tensor, branch: torch.Tensor, bias: Any, dropout_p: float, seed: Any) -> torch.Tensor:
    """Return x + dropout(branch + bias) in fp32, or in fp64 for tensors in fp64."""
    exact = torch.promote_types(x.dtype, torch.float32)
    branch = branch.to(exact)
    if bias is not None:
        branch = branch + bias
    if dropout_p:
        generator = torch.Generator(x.device).manual_seed(int(seed))
        kept = torch.rand(branch.shape, generator=generator, device=branch.device) >= dropout_p
        branch = torch.where(kept, branch / (1.0 - dropout_p), 0.0)
    return x.to(exact) + branch
