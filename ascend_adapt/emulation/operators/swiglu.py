"""npu_swiglu and its gradient: silu of the first half, times the second half."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.limits import FLOATS, Limit, document, dtype, shape
from ascend_adapt.emulation.operators.precision import wide

_PAGE = document("torch_npu-npu_swiglu.md")

CONTIGUOUS = Limit("npu_swiglu", "input is contiguous", _PAGE, silent=True)
NOT_EMPTY = Limit("npu_swiglu", "input is not empty and has 1 to 8 dimensions", _PAGE)
EVEN = Limit("npu_swiglu", "dim is a dimension of the input, of an even size", _PAGE)
DTYPE = Limit("npu_swiglu", "input is float16, bfloat16 or float32", _PAGE)


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
    DTYPE.require(x.dtype in FLOATS, f"input is {dtype(x)}")
    NOT_EMPTY.require(x.numel() > 0 and 1 <= x.dim() <= 8, f"input is {shape(x)}")
    inside = -x.dim() <= dim < x.dim()
    EVEN.require(inside and x.shape[dim] % 2 == 0, f"dim is {dim}, input is {shape(x)}")
    CONTIGUOUS.require(x.is_contiguous(), f"input is {shape(x)} with strides {list(x.stride())}")
