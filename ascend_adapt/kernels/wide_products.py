"""Matrix products of 16-bit matrices with a result in fp32, which may be added to a sum by the product itself."""

from __future__ import annotations

import torch

# true from torch 2.8 on
_IN_TORCH = "dtype_out" in torch.ops.aten.addmm.overloads()


def are_fused(device: torch.device) -> bool:
    """Return whether the product rounds only its sum, in fp32, and adds without another kernel."""
    return device.type == "cuda" and _IN_TORCH and torch.cuda.get_device_capability(device) >= (8, 0)


def product(
    left: torch.Tensor,
    right: torch.Tensor,
    dtype: torch.dtype,
    total: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return left [M, K] @ right [K, N] in fp32 or fp64: added to ``total`` in place, or written to ``out``.

    If the device has no fused product, the product is rounded to the dtype of its inputs first.
    """
    if left.dtype == dtype:
        return torch.mm(left, right, out=out) if total is None else total.addmm_(left, right)
    if not are_fused(left.device):
        rounded = left @ right
        if total is not None:
            return total.add_(rounded)
        return rounded.to(dtype) if out is None else out.copy_(rounded)
    if total is not None:
        return torch.addmm(total, left, right, out_dtype=dtype, out=total)
    if out is not None:
        return torch.mm(left, right, out_dtype=dtype, out=out)
    return torch.mm(left, right, out_dtype=dtype)
