"""Limits of npu_rotary_mul and npu_apply_rotary_pos_emb."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, check, closed, document

_MUL = document("torch_npu-npu_rotary_mul.md")
_APPLY = document("torch_npu-apply_rotary_pos_emb.md")
WIDTHS = range(2, 896, 2)
"""Allowed D, the size of the last dimension."""
COUNTS = range(1000)
"""Allowed B and N in half mode, and allowed B*N in interleave mode."""
MOST_WITH_GRADIENT = 1024
"""Maximum B*N in half mode if r1 or r2 require grad."""
LAYOUTS = {3: ("TND",), 4: ("BNSD", "BSND", "SBND")}
"""Layouts by number of dimensions, because the operator has no argument for the layout."""
SPANS = {
    (3, "half"): ("T", "TN"),
    (3, "interleave"): ("T", "TN"),
    (4, "half"): ("S", "BS", "BSN"),
    (4, "interleave"): ("S",),
}
"""The dimensions, in addition to D, that r1 and r2 may have in full size, by number of dimensions and mode."""

MODE = Limit("npu_rotary_mul", "rotary_mode is 'half' or 'interleave'", check("opapi/RotaryMulKernelNpuOpApi.cpp"))
DTYPE = Limit("npu_rotary_mul", "input, r1 and r2 are float16, bfloat16 or float32", _MUL)
DIMENSIONS = Limit(
    "npu_rotary_mul", "input, r1 and r2 all have 3 or all have 4 dimensions; r1 and r2 have one shape", _MUL
)
HEAD_SIZE = Limit(
    "npu_rotary_mul", f"the last size D is even, in {closed(WIDTHS)}, and the same in input, r1 and r2", _MUL
)
BATCH_AND_HEADS = Limit(
    "npu_rotary_mul",
    f"half: B and N are in {closed(COUNTS)}, and B*N is at most {MOST_WITH_GRADIENT} if r1 or r2 require grad; "
    f"interleave: B*N is in {closed(COUNTS)}",
    _MUL,
)
BROADCAST = Limit(
    "npu_rotary_mul",
    "r1 and r2 have S and D in full, in half mode also B, or all dimensions; interleave: S and D only",
    _MUL,
)
ROTATE_GRADIENT = Limit("npu_rotary_mul", "rotate is not given if an input requires grad", _MUL, silent=True)

LAYOUT = Limit("npu_apply_rotary_pos_emb", "layout is BSND (or its older name BSH) and 4-D, or TND and 3-D", _APPLY)
HALF_ONLY = Limit("npu_apply_rotary_pos_emb", "rotary_mode is 'half'", _APPLY)
SIZES = Limit(
    "npu_apply_rotary_pos_emb",
    "D is 64 or 128 in all inputs, and cos and sin have the leading sizes of query and key with N = 1",
    _APPLY,
)
ONE_DTYPE = Limit("npu_apply_rotary_pos_emb", "all inputs have one dtype", _APPLY)
INFERENCE = Limit(
    "npu_apply_rotary_pos_emb",
    "no input requires grad: the operator overwrites query and key, and has no backward",
    _APPLY,
    silent=True,
)
