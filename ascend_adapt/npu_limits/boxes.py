"""Limits of the operators of object detection."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, check, document

DIOU_BACKWARD = Limit(
    "npu_diou",
    "boxes that need a gradient are xywh (trans is True)",
    document("（beta）torch_npu-npu_diou.md"),
)
GIOU = Limit(
    "npu_giou",
    "trans is True, is_cross is False and mode is 0, even without a gradient",
    check("aclops/GiouKernelNpu.cpp"),
)
