"""Casts of dtype and of memory format."""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.limits import Limit, document, shape
from ascend_adapt.errors import OperatorMissing

# The numbers of c10::ScalarType (pytorch c10/core/ScalarType.h), which npu_dtype_cast takes as int since 2.13.
_SCALAR_TYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
}
BASE_FORMATS = frozenset({-1, 0, 1, 2, 16, 27, 30, 35, 47})
"""ACL formats that order elements as torch does or by permutation only; the others are private to the hardware."""

WHOLE_STORAGE = Limit(
    "npu_format_cast",
    "a tensor cast to a private format (FRACTAL_NZ is 29) owns its whole storage: "
    "a part of a larger buffer would go on in a copy, and what is written to the buffer would not reach it",
    document("torch_npu-npu_format_cast.md"),
    silent=True,
)
FORMAT = Limit("npu_format_cast", "acl_format is one of torch_npu.Format", document("torch_npu-npu_format_cast.md"))
_FORMATS = BASE_FORMATS | {3, 4, 12, 29, 32, 33}


@kernel("npu_dtype_cast", "_npu_dtype_cast")
def dtype_cast(self: torch.Tensor, dtype: int | torch.dtype) -> torch.Tensor:
    """Return a copy in another dtype."""
    return self.detach().to(_dtype(dtype), copy=True)


@kernel("npu_dtype_cast_backward", "_npu_dtype_cast_backward")
def dtype_cast_backward(grad: torch.Tensor, dtype: int | torch.dtype, grad_dtype: int | None = None) -> torch.Tensor:
    """Return the gradient in the dtype of what was cast."""
    return grad.to(_dtype(dtype), copy=True)


@kernel("_npu_format_cast", "_npu_format_cast.aclnn")
def format_cast(self: torch.Tensor, acl_format: int) -> torch.Tensor:
    """Return a copy; memory here is always in torch's order, whatever the format is called."""
    FORMAT.require(acl_format in _FORMATS, f"acl_format is {acl_format}")
    whole = self.untyped_storage().nbytes()
    own = self.numel() * self.element_size()
    aliases = acl_format not in BASE_FORMATS and (self.storage_offset() > 0 or whole - own >= 512)
    WHOLE_STORAGE.require(not aliases, f"acl_format is {acl_format}, input {shape(self)} is {own} of {whole} bytes")
    return self.detach().clone()


def _dtype(dtype: int | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in _SCALAR_TYPES:
        raise OperatorMissing(
            f"npu::npu_dtype_cast: dtype={dtype}, expected the number of a torch dtype — "
            "the emulation has no formats of torch_npu's own"
        )
    return _SCALAR_TYPES[dtype]
