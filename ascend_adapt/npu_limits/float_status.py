"""Limits of npu_get_float_status and npu_clear_float_status."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, check

MODE = Limit(
    "npu_get_float_status, npu_clear_float_status",
    "mode is 0 (original) or 1 (debug)",
    check("aclops/FloatStatusKernelNpu.cpp"),
)
