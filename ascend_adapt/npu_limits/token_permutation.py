"""Limits of the operators that permute the tokens of a mixture of experts."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import OP_PLUGIN, Limit

_PERMUTE = "npu_moe_token_permute"
_TESTS = f"{OP_PLUGIN} test/test_custom_ops/test_npu_moe_token_permute"

NOT_PADDED = Limit(
    f"{_PERMUTE}, npu_moe_token_unpermute", "padded_mode is False", f"{_TESTS}_and_unpermute.py, which never sets it"
)
TOKENS = Limit(_PERMUTE, "tokens are [T, H], indices are [T] or [T, K]", f"{_TESTS}_and_unpermute.py")
PROBS = Limit("npu_moe_token_unpermute", "sorted_indices are [T * K] for probs [T, K]", f"{_TESTS}_and_unpermute.py")
ROUTED = Limit(
    "npu_moe_token_permute_with_routing_map",
    "num_out_tokens is the number of positions that routing_map selects",
    f"{_TESTS}_with_routing_map.py",
    silent=True,
)
MAP = Limit(
    "npu_moe_token_unpermute_with_routing_map",
    "routing_map is given with probs",
    f"{OP_PLUGIN} test/test_custom_ops/test_npu_moe_token_unpermute_with_routing_map.py",
)
