"""Limits of the operators that sort rows of tokens by expert."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, document

_RE_ROUTING = document("torch_npu-npu_moe_re_routing.md")

MODES = Limit("npu_moe_re_routing", "expert_token_num_type is 1 and idx_type is 0", _RE_ROUTING)
EVERY_TOKEN = Limit("npu_moe_re_routing", "the sum of expert_token_num_per_rank is the number of tokens", _RE_ROUTING)
STATIC = Limit(
    "npu_moe_init_routing_v2, npu_moe_init_routing_quant",
    "scale and offset are given for a fixed quantisation (quant_mode 0)",
    document("torch_npu-npu_moe_init_routing_v2.md"),
)
