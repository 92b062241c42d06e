"""npu_gelu, fast_gelu, npu_fast_gelu and their gradients."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import FLOATS, dtype
from ascend_adapt.npu_limits import gelu as limits

STEEPNESS = 1.702
"""fast_gelu(x) = x * sigmoid(1.702 x) on Atlas A2 and A3 (op-plugin@517f2e7 docs torch_npu-npu_fast_gelu.md)."""


@kernel("npu_gelu")
def gelu(self: torch.Tensor, approximate: str) -> torch.Tensor:
    """Return x * Phi(x), Phi by erf or by tanh."""
    _require(self, approximate)
    return torch.nn.functional.gelu(wide(self), approximate=approximate).to(self.dtype)


@kernel("npu_gelu_backward")
def gelu_backward(grad_output: torch.Tensor, self: torch.Tensor, approximate: str) -> torch.Tensor:
    """Return the gradient of the input."""
    _require(self, approximate)
    return torch.ops.aten.gelu_backward(wide(grad_output), wide(self), approximate=approximate).to(self.dtype)


@kernel("fast_gelu", "npu_fast_gelu")
def fast_gelu(self: torch.Tensor) -> torch.Tensor:
    """Return x * sigmoid(1.702 x)."""
    limits.DTYPE.require(self.dtype in FLOATS, f"input is {dtype(self)}")
    x = wide(self)
    return (x * torch.sigmoid(STEEPNESS * x)).to(self.dtype)


@kernel("npu_fast_gelu_backward")
def fast_gelu_backward(grad: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the input."""
    x = wide(self)
    gate = torch.sigmoid(STEEPNESS * x)
    return (wide(grad) * gate * (1 + STEEPNESS * x * (1 - gate))).to(self.dtype)


def _require(x: torch.Tensor, approximate: str) -> None:
    limits.DIMENSION_COUNT.require(x.dim() in limits.DIMENSIONS, f"input has {x.dim()} dimensions")
    limits.APPROXIMATE.require(approximate in ("none", "tanh"), f"approximate is {approximate!r}")
    limits.DTYPE.require(x.dtype in FLOATS, f"input is {dtype(x)}")
