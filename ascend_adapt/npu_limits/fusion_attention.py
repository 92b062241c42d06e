"""Limits of npu_fusion_attention, _v2 and _v3.

The documentation page of version 1 and the docstring of _v2 in torch_npu 2.13.0 agree, unless a limit names one of
them. The page states at most 1M for lengths, 2M for batches and 1K for packed sequences. All three are decimal here,
because op-plugin's code uses 1000000 for 1M (FlashAttentionV2KernelNpuOpApi.cpp, MAX_SEQUENCE_LENGTH).
"""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import DOCSTRINGS, Limit, check, closed, document

_ALL = "npu_fusion_attention, _v2, _v3"
_PAGE = document("torch_npu-npu_fusion_attention.md")
_CODE = check("opapi/FlashAttentionKernelNpuOpApi.cpp")
_V2 = f"{DOCSTRINGS} npu_fusion_attention_v2"

WIDTHS = range(1, 769)
"""Allowed D, the head size."""
HEAD_COUNTS = range(1, 257)
"""Allowed N, the number of heads of the query."""
SEQUENCE_LENGTHS = range(1, 1_000_001)
"""Allowed S, or T in TND."""
BATCH_SIZES = range(1, 2_000_001)
"""Allowed B in layouts other than TND."""
PACKED_SEQUENCES = range(1, 1_001)
"""Allowed number of sequences in one call in TND."""
PREFIXES = range(1, 33)
"""Allowed number of sequences in one call in sparse modes 5 and 6."""
MASK_SIDE = 2048
"""Number of rows, and of columns, of the compressed mask."""

LAYOUT = Limit(_ALL, "input_layout is BSH, SBH, BSND, BNSD or TND, and query, key and value have its dimensions", _CODE)
HEAD_NUM = Limit(_ALL, "head_num is positive and the number of heads of the query", _CODE)
DTYPES = Limit(_ALL, "query, key, value and pse have one dtype: float16, bfloat16 or float32", _PAGE)
KEY_AND_VALUE = Limit(
    _ALL, "key and value have equal sizes except for the head size, and the batch size of the query", _PAGE
)
HEAD_SIZE = Limit(_ALL, f"the head sizes are Dq = Dk >= Dv, in {closed(WIDTHS)}", _PAGE)
HEADS = Limit(
    _ALL,
    f"the number of heads of the query is in {closed(HEAD_COUNTS)} and a multiple of that of key and value",
    _PAGE,
)
LENGTHS = Limit(
    _ALL,
    f"the lengths, or in TND the numbers of tokens, are in {closed(SEQUENCE_LENGTHS)}",
    check("opapi/FlashAttentionV2KernelNpuOpApi.cpp"),
)
BATCH = Limit(_ALL, f"the batch size is in {closed(BATCH_SIZES)}", _PAGE)
KEEP_PROB = Limit(_ALL, "keep_prob, the probability to keep, is in (0, 1]", _CODE)
PADDING_MASK = Limit(_ALL, "padding_mask is None: it is not supported", _PAGE, silent=True)
SPARSE_MODE = Limit(_ALL, "sparse_mode is 0 to 6, or with TND 0 to 4 and 6 to 8", _CODE)
SOFTMAX_LAYOUT = Limit(_ALL, "softmax_layout is empty, or TND if input_layout is TND", _CODE)
ACTUAL_LENGTHS = Limit(
    _ALL,
    "TND needs actual_seq_qlen and actual_seq_kvlen of equal length: cumulative ends without a leading 0, at most the "
    "number of tokens",
    _PAGE,
)
SEQUENCES = Limit(_ALL, f"in TND the number of sequences is in {closed(PACKED_SEQUENCES)}", _PAGE)

MASK_DTYPE = Limit(_ALL, "atten_mask is bool or uint8, 1 = masked out", _PAGE)
MASK_SHAPE = Limit(
    _ALL,
    "a full atten_mask is [B, N, Sq, Skv], [B, 1, Sq, Skv], [1, 1, Sq, Skv] or [Sq, Skv], in TND only the last",
    _PAGE,
)
MASK_MISSING = Limit(
    _ALL,
    "atten_mask is given if sparse_mode, pre_tockens or next_tockens mask anything: they have no effect without it",
    _PAGE,
    silent=True,
)
COMPRESSED_MASK = Limit(
    _ALL,
    f"sparse_mode 2, 3, 4, 7 and 8 take the {MASK_SIDE} x {MASK_SIDE} mask that is True above the diagonal",
    _PAGE,
    silent=True,
)
COMPRESSED_PREFIX_MASK = Limit(
    _ALL,
    "sparse_mode 6 takes the 3072 x 2048 mask: 2048 rows True above the diagonal, 1024 rows True in the right half",
    _PAGE,
    silent=True,
)
BAND_OUTSIDE_MASK = Limit(
    _ALL,
    "with sparse_mode 0 atten_mask also masks every position outside the band of pre_tockens and next_tockens",
    _PAGE,
    silent=True,
)
TOKENS_IGNORED = Limit(
    _ALL,
    "sparse_mode 1, 2, 3, 5 and 6 ignore pre_tockens and next_tockens, so these mask nothing that the mode does not",
    _PAGE,
    silent=True,
)
BAND_EMPTY = Limit(_ALL, "the band of pre_tockens and next_tockens is not empty: their sum is not negative", _PAGE)
EMPTY_ROW = Limit(
    _ALL,
    "no query has all its keys masked, unless inner_precise is 2 or sparse_mode is 3 with Sq > Skv "
    "(True means masked out, the opposite of torch's masks)",
    _PAGE,
    silent=True,
)
EMPTY_ROW_TND = Limit(_ALL, "in TND no query has all its keys masked", _PAGE, silent=True)
CAUSAL_LENGTHS = Limit("npu_fusion_attention_v2", "with sparse_mode 3 Sq <= Skv in each sequence", _V2, silent=True)
PREFIX = Limit(
    _ALL,
    f"sparse_mode 5 and 6 take a prefix for each of at most {PREFIXES[-1]} sequences, in [max(0, Skv - Sq), Skv]",
    _PAGE,
)
PREFIX_MASK = Limit(
    _ALL,
    "sparse_mode 5 takes the mask [B, N or 1, Sq, Skv] that leaves the prefix visible and is causal after it",
    _PAGE,
    silent=True,
)
SPLIT_BAND = Limit(
    _ALL,
    "sparse_mode 7 has pre_tockens >= the last Skv and next_tockens <= 0; 8 has pre_tockens >= the first Skv",
    _PAGE,
    silent=True,
)
SPLIT_PSE = Limit(_ALL, "sparse_mode 7 and 8, and TND with an empty sequence, take no pse", _PAGE)

PSE_SHAPE = Limit(_ALL, "pse is [B, N, Sq, Skv], [B, N, 1, Skv] or [1, N, Sq, Skv]", _PAGE)
COMPRESSED_PSE = Limit(
    _ALL,
    "pse of 1024 rows for a longer Sq is the end of a bias by distance, [B or 1, N, 1024, Skv], with Sq = Skv and a "
    "causal sparse_mode 0, 2 or 3",
    _PAGE,
    silent=True,
)
SLOPES = Limit("npu_fusion_attention_v2", "with pse_type 2 and 3 pse is float32 [B, N] or [N], and Sq = Skv", _V2)
PSE_TYPE = Limit("npu_fusion_attention_v2", "pse_type is 0 to 3, and 1 if query_rope is given", _V2)
ROPE = Limit(
    "npu_fusion_attention_v2",
    "query_rope and key_rope are both given, bfloat16 [T, N, Dr] with Dr a multiple of 8 and at most D, "
    "in TND with an atten_mask, without pse and dropout",
    _V2,
)
SINK = Limit(_ALL, "sink is float32 [head_num]", _PAGE)
DROPOUT_MASK = Limit(
    _ALL,
    "dropout_mask is what _npu_dropout_gen_mask returns for the given seed, offset and keep_prob: "
    "the backward pass regenerates it from these",
    _PAGE,
    silent=True,
)
