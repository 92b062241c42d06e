"""Limits of npu_format_cast and copy_memory_."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import DOCSTRINGS, Limit, document

WHOLE_STORAGE = Limit(
    "npu_format_cast",
    "a tensor that is cast to a private format (FRACTAL_NZ is 29) owns its whole storage: "
    "a view of a larger buffer would become a copy, which later writes to the buffer would not change",
    "Ascend/pytorch@9e73e70 csrc/aten/common/FormatCastKernelNpu.cpp",
    silent=True,
)
FORMAT = Limit("npu_format_cast", "acl_format is one of torch_npu.Format", document("torch_npu-npu_format_cast.md"))
SAME_DTYPE = Limit("copy_memory_", "self and src have one dtype", f"{DOCSTRINGS} copy_memory_")
