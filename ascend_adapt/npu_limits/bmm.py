"""Limits of npu_bmmV2."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, check, document

DTYPE = Limit(
    "npu_bmmV2",
    "self and mat2 have one dtype: float16, bfloat16, float32 or int32",
    document("torch_npu-npu_bmmV2.md"),
)
SHAPES = Limit(
    "npu_bmmV2",
    "the inner sizes are equal and the batch sizes broadcast to each other",
    check("aclops/BmmV2KernelNpu.cpp"),
)
