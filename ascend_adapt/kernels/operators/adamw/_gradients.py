"""Applies the factor, 16-bit gradients and copies for adamw backends that do not support these."""

from __future__ import annotations

from dataclasses import replace

import torch

from ascend_adapt.kernels.operators.adamw import AdamwCall


def in_dtype_of_parameters(call: AdamwCall) -> AdamwCall:
    """Return the call with the factor applied, and each gradient in its parameter's dtype if that is wider."""
    pairs = list(zip(call.params, call.grads, strict=True))
    grads = [grad.to(param.dtype) if grad.element_size() < param.element_size() else grad for param, grad in pairs]
    if call.factor is not None:
        torch._foreach_mul_(grads, call.factor.to(grads[0].device))
    return replace(call, grads=tuple(grads), factor=None)


def write_copies(call: AdamwCall) -> None:
    """Write the new parameters to their copies."""
    if call.copies:
        torch._foreach_copy_(list(call.copies), list(call.params))
