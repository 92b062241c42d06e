"""Reference of add_norm, in plain torch."""

from __future__ import annotations

import torch

from ascend_adapt.kernels.operators.add_norm import AddNormCall


def supports(call: AddNormCall) -> str:
    """Return "", because the reference supports every call."""
    return ""


def run(call: AddNormCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum and its norm."""
    exact = torch.promote_types(call.x.dtype, torch.float32)
    branch = call.branch.to(exact)
    if call.branch_bias is not None:
        branch = branch + call.branch_bias
    if call.dropout_p:
        generator = torch.Generator(call.x.device).manual_seed(int(call.seed))
        kept = torch.rand(branch.shape, generator=generator, device=branch.device) >= call.dropout_p
        branch = torch.where(kept, branch / (1.0 - call.dropout_p), 0.0)
    y = call.x.to(exact) + branch
    centred = y if call.rms else y - y.mean(-1, keepdim=True)
    norm = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + call.eps) * call.weight
    if call.bias is not None:
        norm = norm + call.bias
    return y.to(call.x.dtype), norm.to(call.x.dtype)
