"""npu_swiglu and its gradient: SiLU of the first half times the second half."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import FLOATS, dtype, shape
from ascend_adapt.npu_limits import swiglu as limits


@kernel("npu_swiglu", needs_a2=True)
def swiglu(self: torch.Tensor, dim: int) -> torch.Tensor:
    """Return silu(a) * b for the halves a, b along ``dim``."""
    _require(self, dim)
    first, second = wide(self).chunk(2, dim)
    return (torch.nn.functional.silu(first) * second).to(self.dtype)


@kernel("npu_swiglu_backward", needs_a2=True)
def swiglu_backward(grad_output: torch.Tensor, self: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the gradient of the input."""
    _require(self, dim)
    first, second = wide(self).chunk(2, dim)
    gate = torch.sigmoid(first)
    dy = wide(grad_output)
    slope = gate * (1 + first * (1 - gate))
    return torch.cat((dy * second * slope, dy * first * gate), dim).to(self.dtype)


def _require(x: torch.Tensor, dim: int) -> None:
    limits.DTYPE.require(x.dtype in FLOATS, f"input is {dtype(x)}")
    limits.NOT_EMPTY.require(x.numel() > 0 and x.dim() in limits.DIMENSIONS, f"input is {shape(x)}")
    inside = -x.dim() <= dim < x.dim()
    limits.EVEN.require(inside and x.shape[dim] % 2 == 0, f"dim is {dim}, input is {shape(x)}")
    limits.CONTIGUOUS.require(x.is_contiguous(), f"input is {shape(x)} with strides {list(x.stride())}")
