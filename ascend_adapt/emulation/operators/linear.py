"""npu_linear and its gradient: input @ weight^T + bias, for matrices."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import shape
from ascend_adapt.npu_limits import linear as limits


@kernel("npu_linear")
def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return input @ weight^T + bias, [M, N], in the input's dtype."""
    found = f"input is {shape(input)}, weight is {shape(weight)}" + (
        f", bias is {shape(bias)}" if bias is not None else ""
    )
    fits = input.dim() == weight.dim() == 2 and input.shape[1] == weight.shape[1]
    limits.MATRICES.require(fits and (bias is None or list(bias.shape) == [weight.shape[0]]), found)
    product = wide(input) @ wide(weight).t().to(wide(input).dtype)
    return (product if bias is None else product + bias.detach()).to(input.dtype)


@kernel("npu_linear_backward")
def linear_backward(grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of input and weight."""
    dy = wide(grad)
    return (dy @ wide(weight)).to(input.dtype), (dy.t() @ wide(input)).to(weight.dtype)
