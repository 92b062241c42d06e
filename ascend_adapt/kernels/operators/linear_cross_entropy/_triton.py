"""linear_cross_entropy with the Triton kernels of cross_entropy between torch's matrix products.

A chunk's logits are read once for the losses, and once for their gradient, which overwrites them. Without a bias, they
stay in the dtype of the products.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ascend_adapt.kernels.operators.cross_entropy import _triton
from ascend_adapt.kernels.operators.linear_cross_entropy import LinearCrossEntropyCall
from ascend_adapt.kernels.operators.linear_cross_entropy._chunks import Arithmetic, by_chunks, scaled
from ascend_adapt.kernels.triton_launch import Launcher


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


def _scaled(tensor: torch.Tensor, factor: torch.Tensor | float, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor times a factor, in another dtype. torch's kernel for two dtypes takes three times as long."""
    if isinstance(factor, float) or tensor.dtype == dtype or not tensor.is_contiguous():
        return scaled(tensor, factor, dtype)
    result = torch.empty_like(tensor, dtype=dtype)
    elements = tensor.numel()
    _launch_scale(max(1, -(-elements // _TILE)), tensor, factor, result, elements, _TILE, warps=4)
    return result


@triton.jit
def _scale_kernel(x, factor, y, elements, TILE: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = place < elements
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * tl.load(factor).to(tl.float32)
    tl.store(y + place, value.to(y.dtype.element_ty), mask=inside)


_TILE = 2048
_launch_scale = Launcher(_scale_kernel)
_ARITHMETIC = Arithmetic(_triton.losses_and_normaliser, _gradient_in_place, _scaled)
