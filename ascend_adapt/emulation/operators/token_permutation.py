"""Token permutation for mixtures of experts: sorts tokens by expert, and restores them, weighted by probabilities.

``sorted_indices`` [T * K] maps each choice of each token (a token's K choices are adjacent) to its row in the permuted
tokens. Rows from ``num_out_tokens`` on are dropped. Without padding, ``restore_shape`` has no further information.
Source: op-plugin@517f2e7 test/test_custom_ops/test_npu_moe_token_permute_and_unpermute.py and the two with
``_routing_map``.
"""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.scalar_types import dtype_of
from ascend_adapt.emulation.operators.tensors import shape
from ascend_adapt.npu_limits import token_permutation as limits


@kernel("npu_moe_token_permute", needs_a2=True)
def permute(
    tokens: torch.Tensor, indices: torch.Tensor, num_out_tokens: int | None, padded_mode: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens [T, H], one copy per choice, sorted by expert, and ``sorted_indices`` (int32)."""
    limits.NOT_PADDED.require(not padded_mode, "padded_mode is True")
    fits = indices.dim() in (1, 2) and tokens.dim() == 2 and indices.shape[0] == tokens.shape[0]
    limits.TOKENS.require(fits, f"tokens are {shape(tokens)}, indices are {shape(indices)}")
    choices = 1 if indices.dim() == 1 else indices.shape[1]
    order = torch.argsort(indices.reshape(-1), stable=True)
    kept = order[: _kept(num_out_tokens, order.numel())]
    return tokens.detach().index_select(0, kept // choices), torch.argsort(order).to(torch.int32)


@kernel("npu_moe_token_permute_grad_v2", needs_a2=True)
def permute_grad(
    grad_permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    tokens_size_0: int,
    tokens_dtype: torch.dtype | int,
    num_topK: int,  # noqa: N803 - torch_npu's name
) -> torch.Tensor:
    """Return the gradient of the tokens, which is the sum over the rows of each token."""
    rows = _rows(grad_permuted_tokens, sorted_indices).reshape(tokens_size_0, num_topK, -1)
    return rows.sum(1).to(dtype_of(tokens_dtype))


@kernel("npu_moe_token_permute_grad", needs_a2=True)
def permute_grad_before_2_13(
    tokens: torch.Tensor, grad_permuted_tokens: torch.Tensor, indices: torch.Tensor, sorted_indices: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of the tokens."""
    choices = 1 if indices.dim() == 1 else indices.shape[1]
    return permute_grad(grad_permuted_tokens, sorted_indices, tokens.shape[0], tokens.dtype, choices)


@kernel("_npu_moe_token_unpermute", needs_a2=True)
def unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None,
    padded_mode: bool,
    restore_shape: list[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens [T, H], each the sum of its rows weighted by ``probs`` [T, K], and the input."""
    limits.NOT_PADDED.require(not padded_mode, "padded_mode is True")
    choices = 1 if probs is None else probs.shape[1]
    found = f"sorted_indices are {shape(sorted_indices)}, probs are {'None' if probs is None else shape(probs)}"
    limits.PROBS.require(sorted_indices.numel() % choices == 0, found)
    rows = _rows(permuted_tokens, sorted_indices).reshape(-1, choices, permuted_tokens.shape[1])
    weighted = rows if probs is None else rows * wide(probs).unsqueeze(-1)
    return weighted.sum(1).to(permuted_tokens.dtype), permuted_tokens


@kernel("npu_moe_token_unpermute_grad_v2", needs_a2=True)
def unpermute_grad(
    grad_unpermuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    permuted_tokens_size_0: int,
    permuted_tokens_dtype: torch.dtype | int,
    probs: torch.Tensor | None,
    permuted_tokens: torch.Tensor | None,
    restore_shape: list[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of the permuted tokens and of ``probs``."""
    choices = 1 if probs is None else probs.shape[1]
    grad = wide(grad_unpermuted_tokens)
    spread = grad.unsqueeze(1).expand(-1, choices, -1)
    weighted = spread if probs is None else spread * wide(probs).unsqueeze(-1)
    of_tokens = grad.new_zeros(permuted_tokens_size_0 + 1, grad.shape[1])
    # The additional row is for dropped tokens.
    places = sorted_indices.reshape(-1).long().clamp(max=permuted_tokens_size_0)
    of_tokens.index_copy_(0, places, weighted.reshape(-1, grad.shape[1]).to(of_tokens.dtype))
    of_probs = None
    if probs is not None and permuted_tokens is not None:
        rows = _rows(permuted_tokens, sorted_indices).reshape(-1, choices, grad.shape[1])
        of_probs = (rows * spread).sum(-1).to(probs.dtype)
    return of_tokens[:-1].to(dtype_of(permuted_tokens_dtype)), of_probs


@kernel("npu_moe_token_unpermute_grad", needs_a2=True)
def unpermute_grad_before_2_13(
    permuted_tokens: torch.Tensor,
    grad_unpermuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None,
    restore_shape: list[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of the permuted tokens and of ``probs``."""
    rows, dtype = permuted_tokens.shape[0], permuted_tokens.dtype
    found: tuple[torch.Tensor, torch.Tensor | None] = unpermute_grad(
        grad_unpermuted_tokens, sorted_indices, rows, dtype, probs, permuted_tokens
    )
    return found


@kernel("npu_moe_token_permute_with_routing_map", needs_a2=True)
def permute_by_map(
    tokens: torch.Tensor,
    routing_map: torch.Tensor,
    probs: torch.Tensor | None,
    num_out_tokens: int | None,
    drop_and_pad: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Return the tokens routed by the map [T, E], expert by expert, their ``probs``, and indices (int32).

    The indices are the permuted rows in the order of the tokens or, with ``drop_and_pad``, the token of each row.
    """
    count = tokens.shape[0] if num_out_tokens is None else num_out_tokens
    of_expert = routing_map.t().bool()
    if drop_and_pad:
        capacity = count // routing_map.shape[1]
        of_row = of_expert.to(torch.int8).sort(dim=-1, descending=True, stable=True)[1][:, :capacity]
        indices = of_row.reshape(-1)
        weights = None if probs is None else probs.detach().t().gather(1, of_row).reshape(-1)
    else:
        where = _first_nonzero(of_expert, count // tokens.shape[0] * tokens.shape[0])
        of_row = where[:, 1]
        indices = torch.argsort(of_row, stable=True)
        weights = None if probs is None else probs.detach().t()[where[:, 0], where[:, 1]]
    return tokens.detach().index_select(0, of_row.reshape(-1)), weights, indices.to(torch.int32)


def _first_nonzero(mask: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first ``count`` indices at which a mask is True."""
    if mask.is_meta:
        return mask.new_empty((count, 2), dtype=torch.int64)
    places = mask.nonzero()
    limits.ROUTED.require(len(places) == count, f"routing_map selects {len(places)}, num_out_tokens is {count}")
    return places


@kernel("npu_moe_token_permute_with_routing_map_grad", needs_a2=True)
def permute_by_map_grad(
    permuted_token_out_grad: torch.Tensor,
    probs_grad: torch.Tensor | None,
    sorted_indices: torch.Tensor,
    routing_map: torch.Tensor,
    experts_num: int,
    tokens_num: int,
    drop_and_pad: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of the tokens and of ``probs``."""
    grad, experts = wide(permuted_token_out_grad), experts_num
    of_expert = routing_map.t().bool()
    if drop_and_pad:
        of_row = sorted_indices.long()
        expert = torch.arange(experts, device=of_row.device).repeat_interleave(of_row.numel() // experts)
    else:
        where = _first_nonzero(of_expert, sorted_indices.numel())
        expert, of_row = where[:, 0], where[:, 1]
    of_tokens = grad.new_zeros(tokens_num, grad.shape[1]).index_add_(0, of_row, grad)
    of_probs = None
    if probs_grad is not None:
        of_probs = probs_grad.new_zeros(tokens_num, experts)
        of_probs[of_row, expert] = probs_grad.detach()
    return of_tokens.to(permuted_token_out_grad.dtype), of_probs


@kernel("_npu_moe_token_unpermute_with_routing_map", needs_a2=True)
def unpermute_by_map(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    restore_shape: list[int],
    probs: torch.Tensor | None,
    routing_map: torch.Tensor | None,
    drop_and_pad: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the tokens (``restore_shape``), the row and token of each summand, and the rows' ``probs``."""
    token, row = _summands(sorted_indices, restore_shape[0], drop_and_pad)
    weights = _weights(token, row, probs, routing_map, drop_and_pad)
    rows = wide(permuted_tokens)[row]
    rows = rows if weights is None else rows * wide(weights).unsqueeze(-1)
    tokens = rows.new_zeros(list(restore_shape)).index_add_(0, token, rows).to(permuted_tokens.dtype)
    return tokens, row.to(torch.int32), token.to(torch.int32), weights


@kernel("npu_moe_token_unpermute_with_routing_map_grad", needs_a2=True)
def unpermute_by_map_grad(
    unpermuted_tokens_grad: torch.Tensor,
    out_index: torch.Tensor,
    permuted_token_id: torch.Tensor,
    routing_map: torch.Tensor | None,
    permuted_tokens: torch.Tensor | None,
    probs: torch.Tensor | None,
    drop_and_pad: bool,
    restore_shape: list[int],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of the permuted tokens and of ``probs``; without padding, both indices are equal."""
    grad = wide(unpermuted_tokens_grad)
    row, token = out_index.long(), permuted_token_id.long()
    if not drop_and_pad:
        token, row = _summands(out_index, grad.shape[0], False)
    weights = _weights(token, row, probs, routing_map, drop_and_pad)
    of_row = grad[token] if weights is None else grad[token] * wide(weights).unsqueeze(-1)
    of_tokens = torch.zeros_like(of_row).index_copy_(0, row, of_row).to(unpermuted_tokens_grad.dtype)
    if probs is None or permuted_tokens is None:
        return of_tokens, None
    of_weight = (grad[token] * wide(permuted_tokens)[row]).sum(-1).to(probs.dtype)
    of_probs = torch.zeros_like(probs.detach())
    if drop_and_pad:
        of_probs[token, row // (row.numel() // probs.shape[1])] = of_weight
    else:
        of_probs.masked_scatter_(_required(routing_map).bool(), of_weight)
    return of_tokens, of_probs


def _summands(sorted_indices: torch.Tensor, tokens: int, drop_and_pad: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token and the permuted row of each summand."""
    if drop_and_pad:
        return tuple(sorted_indices.long().sort(dim=0, stable=True))
    choices = sorted_indices.numel() // tokens
    token = torch.arange(tokens, device=sorted_indices.device).repeat_interleave(choices)
    return token, sorted_indices.long()


def _weights(
    token: torch.Tensor,
    row: torch.Tensor,
    probs: torch.Tensor | None,
    routing_map: torch.Tensor | None,
    drop_and_pad: bool,
) -> torch.Tensor | None:
    """Return the probability of each summand."""
    if probs is None:
        return None
    given = probs.detach()
    if drop_and_pad:  # The rows of an expert are contiguous, and each expert has the same number of rows.
        return given[token, row // (row.numel() // given.shape[1])]
    if given.is_meta:
        return given.new_empty(row.numel())
    return given.masked_select(_required(routing_map).bool())


def _required(routing_map: torch.Tensor | None) -> torch.Tensor:
    limits.MAP.require(routing_map is not None, "probs are given, routing_map is None")
    assert routing_map is not None
    return routing_map


def _rows(permuted: torch.Tensor, sorted_indices: torch.Tensor) -> torch.Tensor:
    """Return the permuted row of each choice of each token, in a wider dtype; rows of dropped tokens are zero."""
    rows = torch.cat((wide(permuted), wide(permuted).new_zeros(1, permuted.shape[1])))
    return rows.index_select(0, sorted_indices.reshape(-1).long().clamp(max=permuted.shape[0]))


def _kept(wanted: int | None, everything: int) -> int:
    """Return the number of rows to keep; a negative argument counts from the end, and 0 keeps all rows."""
    if not wanted:
        return everything
    return min(wanted, everything) if wanted > 0 else max(0, everything + wanted)
