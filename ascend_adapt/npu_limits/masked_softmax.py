"""Limits of npu_scaled_masked_softmax."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, closed, document

_NAME = "npu_scaled_masked_softmax"
_PAGE = document("torch_npu-npu_scaled_masked_softmax.md")
LENGTHS = range(32, 4097, 32)
"""Allowed sizes of the last two dimensions, queries and keys."""

FIXED_TRIU_MASK = Limit(_NAME, "fixed_triu_mask is False: True is not implemented yet", _PAGE, silent=True)
MASK_DTYPE = Limit(_NAME, "mask is bool, True = masked out", _PAGE)
DTYPE = Limit(_NAME, "x is float16, bfloat16 or float32", _PAGE)
BROADCAST = Limit(_NAME, "mask broadcasts to the shape of x", _PAGE)
SIZES = Limit(
    _NAME,
    f"x is at most 4-D, and its last two sizes are multiples of {LENGTHS.step} in {closed(LENGTHS)}",
    _PAGE,
)
