"""Attention with torch_npu's npu_fusion_attention, within its documented limits.

Traps, from op-plugin's documentation: True in atten_mask means masked. Without atten_mask, every sparse mode is
silently ignored, so causal needs its mask. Modes 3 and 4 take the fixed 2048 x 2048 upper triangle for all lengths.
Version 1 adds the bias before scaling, version 2 with pse_type=0 after scaling. Packed rows (TND) may not contain a
fully masked row.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from ascend_adapt.kernels import dispatch, masks, npu
from ascend_adapt.kernels.operators.attention import AttentionCall, _pieces
from ascend_adapt.npu_limits import fusion_attention as limits

_ARGUMENTS = ("query", "key", "value", "head_num", "input_layout", "atten_mask", "scale", "keep_prob", "sparse_mode")
FUSION_ATTENTION = npu.Operator(
    "npu_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, Tensor? pse=None, "
    "Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., float keep_prob=1., "
    "int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, int[]? prefix=None, "
    "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, "
    'bool sync=False, str softmax_layout="", Tensor? sink=None, Tensor? dropout_mask=None, int seed=0, int offset=0) '
    "-> (Tensor, Tensor, Tensor, Tensor, int, int, int)",
    (*_ARGUMENTS, "pre_tockens", "next_tockens", "actual_seq_qlen", "actual_seq_kvlen", "prefix"),
)
FUSION_ATTENTION_V2 = npu.Operator(
    "npu_fusion_attention_v2(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, *, "
    "Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, Tensor? query_rope=None, "
    "Tensor? key_rope=None, float scale=1., float keep_prob=1., int pre_tokens=2147483647, "
    "int next_tokens=2147483647, int inner_precise=0, int[]? prefix=None, int[]? actual_seq_qlen=None, "
    "int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, bool sync=False, int pse_type=1, "
    'int[]? q_start_idx=None, int[]? kv_start_idx=None, str softmax_layout="", Tensor? sink=None, '
    "Tensor? dropout_mask=None, int seed=0, int offset=0) -> (Tensor, Tensor, Tensor, Tensor, int, int, int)",
    (*_ARGUMENTS, "pse", "pse_type"),
)
_AXES = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "SBH": (2, 0, 1, 3)}
"""The axes of [B, N, S, D] in the order of each layout."""
_WHOLE_MASK, _CAUSAL, _BAND, _PREFIX = 1, 3, 4, 6


def supports(call: AttentionCall) -> str:
    """Return "" or the documented limit that the call exceeds."""
    batch, heads, queries, width = call.q.shape
    keys = call.k.shape[2]
    lengths = queries in limits.SEQUENCE_LENGTHS and keys in limits.SEQUENCE_LENGTHS
    reason = (
        npu.dtype_reason(call.q, call.k, call.v)
        or limits.HEAD_SIZE.unmet(width in limits.WIDTHS, f"D is {width}")
        or limits.HEADS.unmet(heads in limits.HEAD_COUNTS, f"N is {heads}")
        or limits.LENGTHS.unmet(lengths, f"Sq is {queries}, Skv is {keys}")
        or limits.BATCH.unmet(batch in limits.BATCH_SIZES, f"B is {batch}")
    )
    if reason:
        return reason
    if call.v.shape != call.k.shape:
        return f"k {list(call.k.shape)} and v {list(call.v.shape)} differ"
    if call.prefix is not None and batch not in limits.PREFIXES:
        return limits.PREFIX.unmet(False, f"B is {batch}")
    if call.bias is not None and call.bias.dtype == torch.float64:
        return "it takes a bias of at most fp32"
    if call.bias is not None and call.bias.requires_grad:
        return "it has no gradient of the bias"
    # op-plugin's determin_API_list.md states this for the 950DT.
    if dispatch.is_deterministic() and not dispatch.attention_gradients_repeat():
        return "its gradients are deterministic only under torch.use_deterministic_algorithms(True)"
    operator = FUSION_ATTENTION if call.bias is None else FUSION_ATTENTION_V2
    return operator.difference()


def run(call: AttentionCall) -> torch.Tensor:
    """Return the attention output."""
    return _pieces.without_blind_rows(_pieces.as_wide_as_its_bias(call), _run).to(call.q.dtype)


def _run(call: AttentionCall) -> torch.Tensor:
    if call.cu_seqlens is None:
        return _whole(call)
    if call.masked_out is not None or call.bias is not None:
        return torch.cat([_whole(document) for document in _pieces.documents(call)], 2)
    ends = sorted({*call.cu_seqlens[1:].tolist()} - {0})
    most = limits.PACKED_SEQUENCES[-1]
    groups = [ends[first : first + most] for first in range(0, len(ends), most)]
    starts = [0, *(group[-1] for group in groups)]
    return torch.cat([_packed(call, *group) for group in zip(starts, groups, strict=False)], 2)


def _packed(call: AttentionCall, start: int, ends: list[int]) -> torch.Tensor:
    """Return the attention of consecutive documents, the first of which begins at ``start``."""
    rows = slice(start, ends[-1])
    q, k, v = (each[0, :, rows].transpose(0, 1).contiguous() for each in (call.q, call.k, call.v))
    lengths = [end - start for end in ends]
    result = FUSION_ATTENTION(
        q,
        k,
        v,
        call.q.shape[1],
        "TND",
        actual_seq_qlen=lengths,
        actual_seq_kvlen=lengths,
        **_common(call),
        **_sparse(call),
    )[0]
    return result.transpose(0, 1)[None]


def _whole(call: AttentionCall) -> torch.Tensor:
    """Return the attention in the memory layout of the queries, so that the next linear layer needs no copy of it."""
    layout = _layout(call.q)
    q, k, v = (each.permute(_AXES[layout]).contiguous() for each in (call.q, call.k, call.v))
    given = [each.flatten(2) for each in (q, k, v)] if layout == "SBH" else [q, k, v]
    result = _attended(call, (*given, call.q.shape[1], layout)).view(q.shape)
    return result.permute(*map(_AXES[layout].index, range(4)))


def _layout(q: torch.Tensor) -> str:
    """Return the operator's name of the memory layout of queries [B, N, S, D]."""
    if q.stride(1) >= q.stride(2):
        return "BNSD"
    return "SBH" if q.stride(2) > q.stride(0) else "BSND"


def _attended(call: AttentionCall, tensors: tuple[Any, ...]) -> torch.Tensor:
    if call.prefix is not None:
        length = call.k.shape[2]
        own = {"atten_mask": _prefix_triangle(call.q.device), "sparse_mode": _PREFIX}
        lengths = [min(one, length) for one in _on_host(call.prefix)]
        return FUSION_ATTENTION(*tensors, prefix=lengths, **_common(call), **own)[0]
    hidden = call.masked_out
    if call.bias is not None:
        endless = call.bias == float("-inf")
        hidden = endless if hidden is None else hidden | endless
    if hidden is None:
        return FUSION_ATTENTION(*tensors, **_common(call), **_sparse(call))[0]
    hidden, nothing = _whole_mask(call, hidden)
    masked = {"atten_mask": hidden, "sparse_mode": _WHOLE_MASK}
    if call.bias is None:
        result = FUSION_ATTENTION(*tensors, **_common(call), **masked)[0]
    else:
        result = FUSION_ATTENTION_V2(*tensors, pse=_pse(call), pse_type=0, **_common(call), **masked)[0]
    rows = result.unflatten(2, (call.q.shape[1], -1)) if result.dim() == 3 else result
    return rows.masked_fill(nothing.permute(_AXES[tensors[-1]]), 0.0)


def _common(call: AttentionCall) -> dict[str, Any]:
    return {"scale": call.factor, "keep_prob": 1.0 - call.dropout_p}


def _sparse(call: AttentionCall) -> dict[str, Any]:
    if not call.causal:
        return {}
    triangle = _triangle(call.q.device)
    if call.window is None:
        return {"atten_mask": triangle, "sparse_mode": _CAUSAL}
    return {"atten_mask": triangle, "sparse_mode": _BAND, "pre_tockens": call.window - 1, "next_tockens": 0}


@functools.cache
def _triangle(device: torch.device) -> torch.Tensor:
    return torch.ones(limits.MASK_SIDE, limits.MASK_SIDE, dtype=torch.bool, device=device).triu(1)


@functools.cache
def _prefix_triangle(device: torch.device) -> torch.Tensor:
    """Return the compressed mask of sparse mode 6: causal rows, and rows in which the left half is visible."""
    half = torch.arange(limits.MASK_SIDE, device=device) >= limits.MASK_SIDE // 2
    return torch.cat([_triangle(device), half.expand(limits.MASK_SIDE // 2, -1)])


_lengths: dict[int, tuple[weakref.ref[torch.Tensor], int, list[int]]] = {}


def _on_host(prefix: torch.Tensor) -> list[int]:
    """Return the lengths as numbers. Lengths on a device are read once for all layers of a pass."""
    if prefix.device.type == "cpu":
        lengths: list[int] = prefix.tolist()
        return lengths
    identity, version = id(prefix), prefix._version
    known = _lengths.get(identity)
    if known is None or known[0]() is not prefix or known[1] != version:
        reference = weakref.ref(prefix, lambda _: _lengths.pop(identity, None))
        known = _lengths[identity] = (reference, version, prefix.tolist())
    return known[2]


def _whole_mask(call: AttentionCall, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mask [B or 1, N or 1, Q, K] with fully masked rows unmasked, and a bool tensor of those rows."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    hidden = hidden[(None,) * (4 - hidden.dim())]
    if call.causal:
        late = masks.hidden(
            slice(0, queries),
            slice(0, keys),
            keys - queries,
            causal=True,
            window=call.window,
            device=call.q.device,
        )
        hidden = hidden | late
    nothing = hidden.all(-1, keepdim=True)
    hidden = hidden & ~nothing
    batch, heads = hidden.shape[:2]
    # The operator supports BNSS, B1SS and 11SS, but not 1NSS.
    batch = call.q.shape[0] if heads > 1 else batch
    return hidden.expand(batch, heads, queries, keys).contiguous(), nothing


def _pse(call: AttentionCall) -> torch.Tensor:
    """Return the bias as [B or 1, N, Q, K], with zeros where atten_mask masks."""
    bias = call.bias[(None,) * (4 - call.bias.dim())].masked_fill(call.bias == float("-inf"), 0.0)
    batch = call.q.shape[0] if bias.shape[0] > 1 else 1
    return bias.to(call.q.dtype).expand(batch, call.q.shape[1], call.q.shape[2], call.k.shape[2]).contiguous()
