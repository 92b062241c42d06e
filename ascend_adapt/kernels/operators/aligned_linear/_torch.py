"""aligned_linear with torch's matrix products. The gradient of x is rounded once more than in torch's linear."""

from __future__ import annotations

from typing import Any

import torch

from ascend_adapt.kernels.operators.aligned_linear import BYTES


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x W^T, [..., V]."""
    result: torch.Tensor = _Linear.apply(x, weight)
    return result


class _Linear(torch.autograd.Function):
    """Linear layer that splits each product into an aligned number of columns and the few that remain."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        rows, columns, even = x.reshape(-1, x.shape[-1]), weight.shape[0], _aligned(weight)
        buffer = x.new_empty(len(rows), _aligned(weight, up=True))
        torch.mm(rows, weight[:even].t(), out=buffer[:, :even])
        torch.mm(rows, weight[even:].t(), out=buffer[:, even:columns])
        result = buffer[:, :columns]
        return result.unflatten(0, x.shape[:-1]) if x.dim() > 1 else result[0]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        x, weight = ctx.saved_tensors
        grad, rows, even = grads[0].reshape(-1, weight.shape[0]), x.reshape(-1, x.shape[-1]), _aligned(weight)
        most, rest = grad[:, :even], grad[:, even:]
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = torch.addmm(most @ weight[:even], rest, weight[even:]).view(x.shape)
        if ctx.needs_input_grad[1]:
            of_weight = torch.empty_like(weight)
            torch.mm(most.t(), rows, out=of_weight[:even])
            torch.mm(rest.t(), rows, out=of_weight[even:])
        return of_x, of_weight


def _aligned(weight: torch.Tensor, *, up: bool = False) -> int:
    """Return the number of the weight's rows, rounded down or up to a multiple of 16 bytes."""
    each: int = BYTES // weight.dtype.itemsize
    rows = int(weight.shape[0]) + (each - 1 if up else 0)
    return rows // each * each
