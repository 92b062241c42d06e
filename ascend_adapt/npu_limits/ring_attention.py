"""Limits of npu_ring_attention_update."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import DOCSTRINGS, Limit

_NAME = "npu_ring_attention_update"
_PAGE = f"{DOCSTRINGS} {_NAME}"

LAYOUT = Limit(_NAME, "input_layout is SBH or TND, input_softmax_layout is empty, SBH or TND", _PAGE)
SHAPES = Limit(
    _NAME,
    "both attention outputs have one shape, [S, B, H] or [T, N, D], and the softmax statistics are float32, all "
    "[B, N, S, 8] or all [T, N, 8]",
    _PAGE,
)
STARTS = Limit(
    _NAME,
    "TND needs actual_seq_qlen, cumulative from a leading 0 to T (npu_fusion_attention takes it without the 0)",
    _PAGE,
    silent=True,
)
