"""Casts of dtype and of memory format, and raw copies."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.scalar_types import dtype_of
from ascend_adapt.emulation.operators.tensors import dtype as name_of
from ascend_adapt.emulation.operators.tensors import shape
from ascend_adapt.npu_limits import casts as limits

BASE_FORMATS = frozenset({-1, 0, 1, 2, 16, 27, 30, 35, 47})
"""ACL formats with torch's element order or a permutation of it; all other formats are private to the hardware."""

ALLOCATION_BYTES = 512
"""torch_npu rounds an allocation up to a multiple of this number of bytes; a smaller rest of a storage is unused."""
_FORMATS = BASE_FORMATS | {3, 4, 12, 29, 32, 33}


@kernel("npu_dtype_cast", "_npu_dtype_cast")
def dtype_cast(self: torch.Tensor, dtype: int | torch.dtype) -> torch.Tensor:
    """Return a copy in another dtype."""
    return self.detach().to(dtype_of(dtype), copy=True)


@kernel("npu_dtype_cast_backward", "_npu_dtype_cast_backward")
def dtype_cast_backward(grad: torch.Tensor, dtype: int | torch.dtype, grad_dtype: int | None = None) -> torch.Tensor:
    """Return the gradient in the dtype of the forward input."""
    return grad.to(dtype_of(dtype), copy=True)


@kernel("_npu_format_cast", "_npu_format_cast.aclnn", "_npu_format_cast.input_dtype", only_checks=True)
def format_cast(self: torch.Tensor, acl_format: int, customize_dtype: int = 0, input_dtype: int = 0) -> None:
    """Check a cast to an ACL format; torch_npu marks its result, and elements stay in torch's order."""
    _require_format(self, acl_format)


@kernel("npu_format_cast_.acl_format", only_checks=True)
def format_cast_in_place(self: torch.Tensor, acl_format: int) -> None:
    """Check a cast in place."""
    _require_format(self, acl_format)


@kernel("npu_format_cast_", "npu_dtype_cast_")
def copy_in_own_form(self: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """Copy ``src`` to the input, in the input's format and dtype, and return the input."""
    return self.copy_(src)


@kernel("copy_memory_")
def copy_memory(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy ``src`` to the input in memory order, and return the input."""
    found = f"self is {name_of(self)} {shape(self)}, src is {name_of(src)} {shape(src)}"
    limits.SAME_DTYPE.require(self.dtype == src.dtype, found)
    return self.copy_(src.reshape(self.shape))


def _require_format(x: torch.Tensor, acl_format: int) -> None:
    limits.FORMAT.require(acl_format in _FORMATS, f"acl_format is {acl_format}")
    whole = x.untyped_storage().nbytes()
    own = x.numel() * x.element_size()
    aliases = acl_format not in BASE_FORMATS and (x.storage_offset() > 0 or whole - own >= ALLOCATION_BYTES)
    limits.WHOLE_STORAGE.require(not aliases, f"acl_format is {acl_format}, input {shape(x)} is {own} of {whole} bytes")
