"""Limits of npu_swiglu."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, closed, document

_PAGE = document("torch_npu-npu_swiglu.md")
DIMENSIONS = range(1, 9)

CONTIGUOUS = Limit("npu_swiglu", "input is contiguous", _PAGE, silent=True)
NOT_EMPTY = Limit("npu_swiglu", f"input is not empty, and its number of dimensions is in {closed(DIMENSIONS)}", _PAGE)
EVEN = Limit("npu_swiglu", "dim is a dimension of the input and has an even size", _PAGE)
DTYPE = Limit("npu_swiglu", "input is float16, bfloat16 or float32", _PAGE)
