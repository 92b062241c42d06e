"""npu_bmmV2 and its gradients: batched matrix product, optionally summed to ``output_sizes``."""

from __future__ import annotations

import math

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import dtype, shape
from ascend_adapt.npu_limits import bmm as limits

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int32)


@kernel("npu_bmmV2")
def bmm(self: torch.Tensor, mat2: torch.Tensor, output_sizes: list[int]) -> torch.Tensor:
    """Return self @ mat2; with ``output_sizes``, sum over the batch dimensions that these sizes lack."""
    found = f"self is {dtype(self)} {shape(self)}, mat2 is {dtype(mat2)} {shape(mat2)}"
    limits.DTYPE.require(self.dtype == mat2.dtype and self.dtype in _DTYPES, found)
    inner = mat2.shape[-2] if mat2.dim() > 1 else mat2.shape[0]
    limits.SHAPES.require(self.shape[-1] == inner and _broadcast(self, mat2), found)
    product = self @ mat2 if self.dtype == torch.int32 else wide(self) @ wide(mat2)
    return _summed(product, output_sizes).to(self.dtype)


@kernel("npu_bmm_v2_mat1_backward")
def first_backward(grad: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, size: list[int]) -> torch.Tensor:
    """Return the gradient of the first factor, of shape ``size``."""
    dy, _, second = _as_matrices(grad, mat1, mat2)
    slope = dy @ second.transpose(-1, -2)
    return _summed(slope.squeeze(-2) if mat1.dim() == 1 else slope, size).to(grad.dtype)


@kernel("npu_bmm_v2_mat2_backward")
def second_backward(grad: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, size: list[int]) -> torch.Tensor:
    """Return the gradient of the second factor, of shape ``size``."""
    dy, first, _ = _as_matrices(grad, mat1, mat2)
    slope = first.transpose(-1, -2) @ dy
    return _summed(slope.squeeze(-1) if mat2.dim() == 1 else slope, size).to(grad.dtype)


def _as_matrices(
    grad: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dy, first, second = wide(grad), wide(mat1), wide(mat2)
    if first.dim() == 1:
        first, dy = first[None, :], dy.unsqueeze(-2)
    if second.dim() == 1:
        second, dy = second[:, None], dy.unsqueeze(-1)
    return dy, first, second


def _summed(product: torch.Tensor, size: list[int]) -> torch.Tensor:
    """Sum a product to a size with fewer batch dimensions; return it unchanged if the size is empty."""
    wanted = list(size)
    if not wanted or list(product.shape) == wanted:
        return product
    if product.numel() == math.prod(wanted):
        return product.reshape(wanted)
    padded = [1] * (product.dim() - len(wanted)) + wanted
    return product.sum_to_size(padded).reshape(wanted)


def _broadcast(first: torch.Tensor, second: torch.Tensor) -> bool:
    pairs = zip(reversed(first.shape[:-2]), reversed(second.shape[:-2]), strict=False)
    return all(left == right or 1 in (left, right) for left, right in pairs)
