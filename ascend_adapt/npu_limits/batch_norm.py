"""Limits of batch_norm_reduce, which SyncBatchNorm calls."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, check

CHANNELS = Limit(
    "batch_norm_reduce",
    "input has more than one dimension (torch_npu: The dim input tensor [self] must more than 1)",
    check("opapi/BatchNormReduceKernelNpuOpApi.cpp"),
)
