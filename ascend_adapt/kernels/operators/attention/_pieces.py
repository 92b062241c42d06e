"""Attention in pieces, for backends that support only part of the contract: each piece is a smaller call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from ascend_adapt.kernels import masks
from ascend_adapt.kernels.operators.attention import AttentionCall


def without_blind_rows(call: AttentionCall, run: Callable[[AttentionCall], torch.Tensor]) -> torch.Tensor:
    """Return ``run`` of the rows that are not fully masked by ``causal``, preceded by zeros for the leading rows."""
    blind = max(0, call.q.shape[2] - call.k.shape[2]) if call.causal else 0
    if not blind:
        return run(call)
    batch, heads, queries, _ = call.q.shape
    zeros = call.q.new_zeros(batch, heads, blind, call.v.shape[3])
    return torch.cat([zeros, run(part(call, slice(blind, queries), slice(0, call.k.shape[2])))], 2)


def as_wide_as_its_bias(call: AttentionCall) -> AttentionCall:
    """Return the call in the dtype of its bias if that is wider. In bf16, a bias of 1000 would be off by up to 2."""
    if call.bias is None or call.bias.dtype == call.q.dtype:
        return call
    dtype = torch.promote_types(call.q.dtype, call.bias.dtype)
    return replace(call, q=call.q.to(dtype), k=call.k.to(dtype), v=call.v.to(dtype))


def documents(call: AttentionCall) -> Iterator[AttentionCall]:
    """Yield a call for each packed document. This synchronises with the device of cu_seqlens."""
    borders = call.cu_seqlens.tolist()
    for start, stop in zip(borders, borders[1:], strict=False):
        if stop > start:
            yield replace(part(call, slice(start, stop), slice(start, stop)), cu_seqlens=None)


def masked_by_document(call: AttentionCall) -> AttentionCall:
    """Return the call with cu_seqlens replaced by a mask, for cu_seqlens whose values cannot be read."""
    document = masks.documents(call.cu_seqlens, call.k.shape[2])
    others = document[:, None] != document[None, :]
    hidden = others if call.masked_out is None else others | call.masked_out
    return replace(call, masked_out=hidden, cu_seqlens=None)


def masked_by_prefix(call: AttentionCall) -> AttentionCall:
    """Return the call with a prefix replaced by a mask."""
    if call.prefix is None:
        return call
    hidden = masks.hidden_by_prefix(call.prefix, call.k.shape[2], call.q.device)
    return replace(call, masked_out=hidden, causal=False, prefix=None)


def part(call: AttentionCall, rows: slice, columns: slice) -> AttentionCall:
    """Return the call for some queries and keys. ``causal`` stays correct if both end at the same position."""
    return replace(
        call,
        q=call.q[:, :, rows],
        k=call.k[:, :, columns],
        v=call.v[:, :, columns],
        masked_out=part_of_mask(call.masked_out, rows, columns),
        bias=part_of_mask(call.bias, rows, columns),
    )


def part_of_mask(mask: torch.Tensor | None, rows: slice, columns: slice) -> torch.Tensor | None:
    """Return part of a mask or bias that broadcasts to [B, N, Q, K], as a 4-D tensor."""
    if mask is None:
        return None
    mask = mask[(None,) * (4 - mask.dim())]
    mask = mask if mask.shape[2] == 1 else mask[:, :, rows]
    return mask if mask.shape[3] == 1 else mask[:, :, :, columns]
