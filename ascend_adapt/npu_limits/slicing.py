"""Limits of npu_slice, npu_indexing and npu_pad."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, document

BLOCK = Limit(
    "npu_slice",
    "offsets and size have one number for each dimension, and the block is inside the input",
    document("（beta）torch_npu-npu_slice.md"),
)
STRIDES = Limit(
    "npu_indexing",
    "begin, end and strides have one length, and strides are positive",
    document("（beta）torch_npu-npu_indexing.md"),
)
PADDINGS = Limit("npu_pad", "paddings have two numbers for each dimension", document("（beta）torch_npu-npu_pad.md"))
