"""Limits of npu_fused_linear_online_max_sum, of its loss and of its gradient."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, closed, document

_PRODUCT = "npu_fused_linear_online_max_sum"
_LOSS = "npu_fused_cross_entropy_loss_with_max_sum"
_GRADIENT = "npu_fused_linear_cross_entropy_loss_with_max_sum_backward"
_PRODUCT_PAGE = document(f"torch_npu-{_PRODUCT}.md")
_LOSS_PAGE = document(f"torch_npu-{_LOSS}.md")
_GRADIENT_PAGE = document(f"torch_npu-{_GRADIENT}.md")

INNER_SIZES = range(65535)
"""Allowed H, the size over which the product sums."""
VOCABULARY_FROM = 128
"""The smallest V of the gradient."""

DTYPES = Limit(_PRODUCT, "input and weight are both float16 or both bfloat16, target is int32 or int64", _PRODUCT_PAGE)
SHAPES = Limit(
    _PRODUCT,
    f"input is [N, H] with H in {closed(INNER_SIZES)}, weight is [V, H] with V at least 1, target is [N]",
    _PRODUCT_PAGE,
)
RANGE = Limit(_PRODUCT, "0 <= vocab_start_index <= vocab_end_index", _PRODUCT_PAGE)
ROWS_OF_WEIGHT = Limit(
    _PRODUCT,
    "vocab_end_index - vocab_start_index is at most V, the number of rows of weight",
    _PRODUCT_PAGE,
    silent=True,
)
LOSS_TENSORS = Limit(
    _LOSS,
    "logits_max, sum_exp_logits and predicted_logits are float32 [N], vocab_parallel_logits is [N, V] in "
    "float32, float16 or bfloat16",
    _LOSS_PAGE,
)
LOSS_OPTIONS = Limit(_LOSS, "label_smoothing is 0, input and weight are None", _LOSS_PAGE)
GRADIENT_DTYPES = Limit(
    _GRADIENT,
    "grad is float32, input and weight are both float16 or both bfloat16, target_mask is uint8, "
    "masked_target is int32 or int64, softmax (or logits_max and sum_exp_logits) is float32",
    _GRADIENT_PAGE,
)
GRADIENT_SHAPES = Limit(
    _GRADIENT,
    f"grad and masked_target are [N], input is [N, H], weight is [V, H] with V at least {VOCABULARY_FROM}, "
    "target_mask has at least N bits, softmax is [N, V], logits_max and sum_exp_logits are [N]",
    _GRADIENT_PAGE,
)
GRADIENT_MODES = Limit(_GRADIENT, "softmax is given, or logits_max and sum_exp_logits are", _GRADIENT_PAGE)
GRADIENT_SMOOTHING = Limit(_GRADIENT, "label_smoothing is 0", _GRADIENT_PAGE)
TARGET_RANGE = Limit(_GRADIENT, "masked_target is in [0, V)", _GRADIENT_PAGE, silent=True)
