"""Limits of matrix products that overlap a collective."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, check, closed, document

_GATHER = "npu_all_gather_base_mm"
_SCATTER = "npu_mm_reduce_scatter_base"
_BOTH = f"{_GATHER}, {_SCATTER}"
_PAGE = document(f"torch_npu-{_GATHER}.md")
_CODE = check("opapi/AllGatherBaseMatmulKernelNpuOpApi.cpp")
RANKS = (2, 4, 8)
INNER_SIZES = range(256, 65535)

WORLD = Limit(_BOTH, "world_size is 2, 4 or 8", _PAGE)
GROUP = Limit(_BOTH, "hcom is get_hccl_comm_name of a process group of world_size ranks", _PAGE)
SHAPES = Limit(_BOTH, "self is [M, K] and x2 is [K, N]", _CODE)
INNER = Limit(_BOTH, f"K is in {closed(INNER_SIZES)}", _PAGE)
DTYPE = Limit(
    _BOTH,
    "self and x2 are both float16, both bfloat16, or both int8 with x2_scale and comm_mode aiv",
    f"{_PAGE}, {_CODE}",
)
TRANSPOSED = Limit(_BOTH, "self is not transposed", _PAGE)
BIAS = Limit(_BOTH, "bias is not given, because only zeros are supported", _PAGE)
DEFAULTS = Limit(_BOTH, "comm_turn and gather_index are 0, reduce_op is sum, comm_mode is ai_cpu or aiv", _PAGE)
GATHERED = Limit(_GATHER, "gather_output is True if comm_mode is aiv", _PAGE)
ROWS = Limit(_SCATTER, "M is divisible by world_size", check("opapi/MatmulReduceScatterBaseKernelNpuOpApi.cpp"))
