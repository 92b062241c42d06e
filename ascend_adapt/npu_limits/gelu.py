"""Limits of npu_gelu, fast_gelu, npu_fast_gelu and npu_geglu."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, check, document

DIMENSIONS = range(9)

APPROXIMATE = Limit("npu_gelu", "approximate is 'none' or 'tanh'", document("torch_npu-npu_gelu.md"))
DIMENSION_COUNT = Limit("npu_gelu", f"input has at most {DIMENSIONS[-1]} dimensions", document("torch_npu-npu_gelu.md"))
DTYPE = Limit(
    "npu_gelu, fast_gelu, npu_fast_gelu, npu_geglu",
    "input is float16, bfloat16 or float32",
    document("torch_npu-npu_fast_gelu.md"),
)
HALVES = Limit(
    "npu_geglu", "dim is a dimension of the input and has an even size", check("opapi/GeGluKernelNpuOpApi.cpp")
)
