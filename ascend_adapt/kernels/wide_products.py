"""Products of 16-bit matrices with a result in fp32, which the same kernel may add to a sum."""

from __future__ import annotations

import torch

# true from torch 2.8 on
_IN_TORCH = "dtype_out" in torch.ops.aten.addmm.overloads()


def are_fused(device: torch.device) -> bool:
    """Return whether one kernel computes the product in fp32, without rounding it to 16 bits, and adds it."""
    return device.type == "cuda" and _IN_TORCH and torch.cuda.get_device_capability(device) >= (8, 0)


def product(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return left [M, K] @ right [K, N] in fp32 or fp64.

    If the device has no fused product, the product is rounded to the dtype of its inputs first.
    """
    if left.dtype == dtype:
        return left @ right
    if _is_fused(left, dtype):
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, overwrite: bool = False) -> None:
    """Add left [M, K] @ right [K, N] to ``total`` in place, or with ``overwrite`` write it there.

    ``total`` is [M, N], or has the rows in blocks that may be apart in memory: [blocks, M / blocks, N].
    """
    if total.dim() == 3:
        left, right = left.unflatten(0, total.shape[:2]), right.expand(total.shape[0], *right.shape)
    if left.dtype == total.dtype:
        if total.dim() == 3:
            total.baddbmm_(left, right, beta=0 if overwrite else 1)
        else:
            total.addmm_(left, right, beta=0 if overwrite else 1)
    elif not _is_fused(left, total.dtype):
        rounded = left @ right
        _ = total.copy_(rounded) if overwrite else total.add_(rounded)
    elif total.dim() == 3 and overwrite:
        torch.bmm(left, right, out_dtype=total.dtype, out=total)
    elif total.dim() == 3:
        torch.baddbmm(total, left, right, out_dtype=total.dtype, out=total)
    elif overwrite:
        torch.mm(left, right, out_dtype=total.dtype, out=total)
    else:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)


def _is_fused(left: torch.Tensor, dtype: torch.dtype) -> bool:
    return left.element_size() == 2 and dtype == torch.float32 and are_fused(left.device)
