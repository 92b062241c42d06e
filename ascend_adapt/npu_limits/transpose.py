"""Limits of npu_confusion_transpose."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, check

PERMUTATION = Limit(
    "npu_confusion_transpose",
    "perm is a permutation of the dimensions that it is applied to, and shape has as many elements as the input",
    check("aclops/ConfusionTransposeKernelNpu.cpp"),
)
