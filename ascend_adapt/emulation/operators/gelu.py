"""npu_gelu, fast_gelu, npu_fast_gelu, npu_geglu and their gradients."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import FLOATS, dtype, shape
from ascend_adapt.npu_limits import gelu as limits

STEEPNESS = 1.702
"""fast_gelu(x) = x * sigmoid(1.702 x) on Atlas A2 and A3 (op-plugin@517f2e7 docs torch_npu-npu_fast_gelu.md)."""


@kernel("npu_gelu")
def gelu(self: torch.Tensor, approximate: str) -> torch.Tensor:
    """Return x * Phi(x), with Phi computed by erf or approximated by tanh."""
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


@kernel("npu_geglu")
def geglu(self: torch.Tensor, dim: int, approximate: int, activate_left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a * gelu(b) and gelu(b) for the halves a, b along ``dim``; with ``activate_left``, b is the first half."""
    kept, activated = _halves(self, dim, activate_left)
    gelu = torch.nn.functional.gelu(activated, approximate=_FORMS[approximate])
    return (kept * gelu).to(self.dtype), gelu.to(self.dtype)


@kernel("npu_geglu_grad")
def geglu_grad(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    gelu: torch.Tensor,
    dim: int,
    approximate: int,
    activate_left: bool,
) -> torch.Tensor:
    """Return the gradient of the input."""
    kept, activated = _halves(self, dim, activate_left)
    dy = wide(grad_output)
    slope = torch.ops.aten.gelu_backward(dy * kept, activated, approximate=_FORMS[approximate])
    both = (slope, dy * wide(gelu)) if activate_left else (dy * wide(gelu), slope)
    return torch.cat(both, dim).to(self.dtype)


_FORMS = ("none", "tanh")


def _halves(x: torch.Tensor, dim: int, activate_left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the unchanged half and the activated half."""
    limits.DTYPE.require(x.dtype in FLOATS, f"input is {dtype(x)}")
    inside = -x.dim() <= dim < x.dim()
    limits.HALVES.require(inside and x.shape[dim] % 2 == 0, f"dim is {dim}, input is {shape(x)}")
    first, second = wide(x).chunk(2, dim)
    return (second, first) if activate_left else (first, second)


def _require(x: torch.Tensor, approximate: str) -> None:
    limits.DIMENSION_COUNT.require(x.dim() in limits.DIMENSIONS, f"input has {x.dim()} dimensions")
    limits.APPROXIMATE.require(approximate in ("none", "tanh"), f"approximate is {approximate!r}")
    limits.DTYPE.require(x.dtype in FLOATS, f"input is {dtype(x)}")
