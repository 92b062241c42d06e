"""Limits of npu_cross_entropy_loss."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, closed, document

_PAGE = document("torch_npu-npu_cross_entropy_loss.md")
_NAME = "npu_cross_entropy_loss"
ROWS = range(1, 200_001)
"""Allowed N, the number of tokens in one call."""

SHAPES = Limit(_NAME, f"input is [N, C] with N in {closed(ROWS)}, target is [N], weight is [C]", _PAGE)
DTYPES = Limit(_NAME, "input is float16, bfloat16 or float32, target int64, weight float32", _PAGE)
REDUCTION = Limit(_NAME, "reduction is 'mean', 'sum' or 'none'", _PAGE)
SMOOTHING = Limit(_NAME, "label_smoothing is in [0, 1)", _PAGE)
TARGET_RANGE = Limit(
    _NAME,
    "targets are in [0, C): a negative ignore_index, such as the default -100, ignores nothing",
    _PAGE,
    silent=True,
)
IGNORE_INDEX = Limit(_NAME, "ignore_index is less than C", _PAGE)
ZLOSS = Limit(
    _NAME,
    "lse_square_scale_for_zloss is 0 and return_zloss is False: they have no effect yet",
    _PAGE,
    silent=True,
)
MEAN_GRADIENT = Limit(
    _NAME,
    "if the input requires grad, 'mean' needs weight, ignore_index and label_smoothing at their defaults",
    _PAGE,
    silent=True,
)
SUM_GRADIENT = Limit(
    _NAME,
    "if the input requires grad, 'sum' and 'none' need label_smoothing at its default",
    _PAGE,
    silent=True,
)
