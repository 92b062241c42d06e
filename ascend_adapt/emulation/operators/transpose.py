"""npu_transpose, and npu_confusion_transpose with its gradient: permutation and reshape in one operator."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.tensors import shape
from ascend_adapt.npu_limits import transpose as limits


@kernel("npu_transpose")
def transpose(self: torch.Tensor, perm: list[int], require_contiguous: bool = True) -> torch.Tensor:
    """Return the permuted input as a contiguous tensor."""
    return self.detach().permute(perm).contiguous().clone()


@kernel("npu_confusion_transpose")
def confusion_transpose(self: torch.Tensor, perm: list[int], shape: list[int], transpose_first: bool) -> torch.Tensor:
    """Return the input permuted and then reshaped, or reshaped and then permuted."""
    _require(self, perm, self.dim() if transpose_first else len(shape), shape)
    moved = self.permute(perm).reshape(shape) if transpose_first else self.reshape(shape).permute(perm)
    return moved.contiguous()


@kernel("npu_confusion_transpose_backward")
def confusion_transpose_backward(
    grad: torch.Tensor, perm: list[int], shape: list[int], transpose_first: bool
) -> torch.Tensor:
    """Return the gradient, of shape ``shape``; ``transpose_first`` is negated compared with the forward call."""
    back = [list(perm).index(dim) for dim in range(len(perm))]
    if transpose_first:
        return grad.permute(back).reshape(shape).contiguous()
    return grad.reshape([shape[dim] for dim in perm]).permute(back).contiguous()


def _require(x: torch.Tensor, perm: list[int], rank: int, wanted: list[int]) -> None:
    size = 1
    for extent in wanted:
        size *= extent
    fits = sorted(perm) == list(range(rank)) and size == x.numel()
    limits.PERMUTATION.require(fits, f"perm is {list(perm)}, shape is {list(wanted)}, input is {shape(x)}")
