"""Activations under torch_npu's names: SiLU in place, Mish, softmax in place."""

from __future__ import annotations

import torch
from torch.nn import functional

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide


@kernel("npu_silu_")
def silu_in_place(self: torch.Tensor) -> torch.Tensor:
    """Write x * sigmoid(x) to the input, and return it."""
    return self.copy_(functional.silu(wide(self)))


@kernel("npu_mish")
def mish(self: torch.Tensor) -> torch.Tensor:
    """Return x * tanh(softplus(x))."""
    return functional.mish(wide(self)).to(self.dtype)


@kernel("npu_mish_backward")
def mish_backward(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the input."""
    return torch.ops.aten.mish_backward(wide(grad), wide(input)).to(input.dtype)


@kernel("npu_gelu_mul")
def gelu_mul(input: torch.Tensor, approximate: str) -> torch.Tensor:
    """Return the GELU of the first half of the last dimension, multiplied by the second half."""
    first, second = wide(input).chunk(2, -1)
    return (functional.gelu(first, approximate=approximate) * second).to(input.dtype)


@kernel("npu_attn_softmax_")
def softmax_in_place(self: torch.Tensor) -> torch.Tensor:
    """Write the softmax over the last dimension to the input, and return it."""
    return self.copy_(wide(self).softmax(-1))


@kernel("npu_softmax_cross_entropy_with_logits")
def softmax_cross_entropy(self: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return -sum(labels * log_softmax(logits)) of each row, [N], for logits and labels [N, C]."""
    return -(wide(labels) * wide(self).log_softmax(1)).sum(1).to(self.dtype)


@kernel("npu_softmax_cross_entropy_with_logits_backward")
def softmax_cross_entropy_backward(grad: torch.Tensor, self: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the logits."""
    goal = wide(labels)
    slope = wide(self).softmax(1) * goal.sum(1, keepdim=True) - goal
    return (slope * wide(grad).unsqueeze(1)).to(self.dtype)
