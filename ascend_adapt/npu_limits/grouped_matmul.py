"""Limits of npu_grouped_matmul."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import OP_PLUGIN, Limit, check, document

_NAME = "npu_grouped_matmul"
_PAGE = document("torch_npu-npu_grouped_matmul.md")
_CODE = check("opapi/GroupedMatmulKernelNpuOpApi.cpp")
INNER_LIMIT = 65536

GROUP_TYPE = Limit(_NAME, "group_type is -1, 0 or 2, and given if group_list is a tensor", _CODE)
SPLIT_ITEM = Limit(_NAME, "split_item is 0, 1, 2 or 3", _CODE)
GROUP_LIST = Limit(
    _NAME, "group_list has as many groups as there are weights, and the groups cover all rows", _PAGE, silent=True
)
PAIRS = Limit(_NAME, "x_i is [M, K] and weight_i is [K, N], and there are as many x as weights", _PAGE)
DTYPE = Limit(_NAME, "x is float16, bfloat16, float32 or int8", _PAGE)
INNER = Limit(_NAME, f"the last dimension of each x and weight is smaller than {INNER_LIMIT}", _PAGE)
ADD = Limit(
    "npu_grouped_matmul_add",
    "transpose_x is True, transpose_weight is False, group_type is 2",
    f"{OP_PLUGIN} test/test_custom_ops/test_npu_grouped_matmul_add.py, which sets nothing else",
)
