"""linear_cross_entropy with the Triton kernels of cross_entropy between torch's matrix products.

A chunk's logits are read once for the losses and once for their gradient, which overwrites them; without a bias they
stay in the dtype of the products.
"""

from __future__ import annotations

from typing import Any

import torch

from ascend_adapt.kernels.operators.cross_entropy import _triton
from ascend_adapt.kernels.operators.linear_cross_entropy import LinearCrossEntropyCall
from ascend_adapt.kernels.operators.linear_cross_entropy._chunks import Arithmetic, by_chunks


def supports(call: LinearCrossEntropyCall) -> str:
    """Return "" or why the Triton kernels do not support the call."""
    for name, tensor in (("hidden", call.hidden), ("bias", call.bias)):
        if tensor is not None and tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            return f"it takes fp16, bf16 and fp32, {name} is {str(tensor.dtype).removeprefix('torch.')}"
    return "" if len(call.labels) and call.weight.shape[0] else "there are no logits"


def run(call: LinearCrossEntropyCall) -> torch.Tensor:
    """Return the loss: a scalar, or with ``none`` one per token, [T]."""
    return by_chunks(call, _ARITHMETIC)


def _gradient_in_place(logits: torch.Tensor, normaliser: torch.Tensor, grad: torch.Tensor, chunk: Any) -> torch.Tensor:
    return _triton.gradient(logits, normaliser, grad, chunk, into=logits)


_ARITHMETIC = Arithmetic(False, _triton.losses_and_normaliser, _gradient_in_place)
