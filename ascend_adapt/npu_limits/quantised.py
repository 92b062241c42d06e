"""Limits of quantisation, and of products of int8 matrices."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, document

_PAGE = document("torch_npu-npu_quant_matmul.md")
_NAMES = "npu_quant_matmul, npu_weight_quant_batchmatmul, npu_anti_quant"

INT8 = Limit(_NAMES, "the quantised tensors are int8", _PAGE)
INNER = Limit("npu_quant_matmul, npu_weight_quant_batchmatmul", "x1 is [..., M, K] and x2 is [..., K, N]", _PAGE)
PACKED = Limit(
    "npu_dynamic_quant, npu_group_quant, npu_swiglu_quant",
    "the last dimension of what becomes quint4x2 is a multiple of 8",
    document("torch_npu-npu_group_quant.md"),
)
UPDATE = Limit("npu_quant_scatter", "reduce is 'update'", document("torch_npu-npu_quant_scatter.md"))
