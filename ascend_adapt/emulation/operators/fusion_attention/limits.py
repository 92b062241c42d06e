"""The documented limits of npu_fusion_attention (v1, v2, v3).

v1's are in op-plugin's torch_npu-npu_fusion_attention.md, v2's in the docstring that torch_npu 2.13.0 carries; both say
the same unless a limit names one. What the host code checks is named by its file.
"""

from __future__ import annotations

from ascend_adapt.emulation.operators.limits import DOCSTRINGS, Limit, check, document

_ALL = "npu_fusion_attention, _v2, _v3"
_PAGE = document("torch_npu-npu_fusion_attention.md")
_CODE = check("opapi/FlashAttentionKernelNpuOpApi.cpp")
_V2 = f"{DOCSTRINGS} npu_fusion_attention_v2"

LAYOUT = Limit(_ALL, "input_layout is BSH, SBH, BSND, BNSD or TND, and query, key and value have its dimensions", _CODE)
HEAD_NUM = Limit(_ALL, "head_num is positive and the number of heads of the query", _CODE)
DTYPES = Limit(_ALL, "query, key, value and pse are of one dtype: float16, bfloat16 or float32", _PAGE)
KEY_AND_VALUE = Limit(
    _ALL, "key and value agree in all sizes but that of a head, and with the query in the batch", _PAGE
)
HEAD_SIZE = Limit(_ALL, "the head sizes are Dq = Dk >= Dv, in [1, 768]", _PAGE)
HEADS = Limit(_ALL, "the query has at most 256 heads, a multiple of those of key and value", _PAGE)
LENGTHS = Limit(_ALL, "lengths are in [1, 1M]; in TND the token count is", _PAGE)
KEEP_PROB = Limit(_ALL, "keep_prob, the share that is kept, is in (0, 1]", _CODE)
PADDING_MASK = Limit(_ALL, "padding_mask is None: it is not supported", _PAGE, silent=True)
SPARSE_MODE = Limit(_ALL, "sparse_mode is 0 to 6, or with TND 0 to 4 and 6 to 8", _CODE)
SOFTMAX_LAYOUT = Limit(_ALL, "softmax_layout is empty, or TND where input_layout is", _CODE)
ACTUAL_LENGTHS = Limit(
    _ALL,
    "TND needs actual_seq_qlen and actual_seq_kvlen: as many cumulative ends each, no leading 0, up to the tokens",
    _PAGE,
)

MASK_DTYPE = Limit(_ALL, "atten_mask is bool or uint8, 1 where a place is masked out", _PAGE)
MASK_SHAPE = Limit(
    _ALL,
    "a full atten_mask is [B, N, Sq, Skv], [B, 1, Sq, Skv], [1, 1, Sq, Skv] or [Sq, Skv], with TND the last",
    _PAGE,
)
MASK_MISSING = Limit(
    _ALL,
    "atten_mask is given where sparse_mode, pre_tockens or next_tockens mask: without one they do nothing",
    _PAGE,
    silent=True,
)
COMPRESSED_MASK = Limit(
    _ALL,
    "sparse_mode 2, 3, 4, 7 and 8 take the 2048 x 2048 mask that is True above the diagonal",
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
    "with sparse_mode 0 every place that pre_tockens and next_tockens leave out is masked in atten_mask too",
    _PAGE,
    silent=True,
)
TOKENS_IGNORED = Limit(
    _ALL,
    "pre_tockens and next_tockens mask nothing more than sparse_mode 1, 2, 3, 5 and 6 do, which ignore them",
    _PAGE,
    silent=True,
)
BAND_EMPTY = Limit(_ALL, "pre_tockens and next_tockens leave a band: their sum is not negative", _PAGE)
EMPTY_ROW = Limit(
    _ALL,
    "no query has all its keys masked, unless inner_precise is 2 or sparse_mode is 3 with Sq > Skv "
    "(True means masked out, the opposite of torch's masks)",
    _PAGE,
    silent=True,
)
EMPTY_ROW_TND = Limit(_ALL, "with TND no query has all its keys masked", _PAGE, silent=True)
CAUSAL_LENGTHS = Limit("npu_fusion_attention_v2", "with sparse_mode 3 Sq <= Skv in each sequence", _V2, silent=True)
PREFIX = Limit(
    _ALL,
    "sparse_mode 5 and 6 take a prefix for each of at most 32 sequences, in [max(0, Skv - Sq), Skv]",
    _PAGE,
)
PREFIX_MASK = Limit(
    _ALL, "sparse_mode 5 takes the mask [B, N or 1, Sq, Skv] of its prefix and a causal rest", _PAGE, silent=True
)
SPLIT_BAND = Limit(
    _ALL,
    "sparse_mode 7 has pre_tockens >= the last Skv and next_tockens <= 0; 8 has pre_tockens >= the first Skv",
    _PAGE,
    silent=True,
)
SPLIT_PSE = Limit(_ALL, "sparse_mode 7 and 8 take no pse, nor does TND with an empty sequence", _PAGE)

PSE_SHAPE = Limit(_ALL, "pse is [B, N, Sq, Skv], [B, N, 1, Skv] or [1, N, Sq, Skv]", _PAGE)
COMPRESSED_PSE = Limit(
    _ALL,
    "pse of 1024 rows for a longer Sq is the end of a bias by distance, [B or 1, N, 1024, Skv], with Sq = Skv and a "
    "causal sparse_mode 0, 2 or 3",
    _PAGE,
    silent=True,
)
SLOPES = Limit("npu_fusion_attention_v2", "with pse_type 2 and 3 pse is float32 [B, N] or [N], and Sq = Skv", _V2)
PSE_TYPE = Limit("npu_fusion_attention_v2", "pse_type is 0 to 3, and 1 where query_rope is given", _V2)
ROPE = Limit(
    "npu_fusion_attention_v2",
    "query_rope and key_rope come together, bfloat16 [T, N, Dr] with Dr a multiple of 8 and at most D, "
    "in TND with an atten_mask, without pse and dropout",
    _V2,
)
SINK = Limit(_ALL, "sink is float32 [head_num]", _PAGE)
DROPOUT_MASK = Limit(
    _ALL,
    "dropout_mask is what _npu_dropout_gen_mask makes of the given seed, offset and keep_prob: "
    "the gradient makes it again from these",
    _PAGE,
    silent=True,
)
