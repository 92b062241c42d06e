"""Limits of npu_linear."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, document

MATRICES = Limit(
    "npu_linear",
    "input is [M, K], weight [N, K], bias [N]: no batch dimensions",
    document("torch_npu-npu_linear.md"),
    silent=True,
)
