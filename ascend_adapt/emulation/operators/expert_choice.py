"""Routing of tokens to experts: softmax or sigmoid of the router's logits, and the K largest results.

Source: op-plugin@517f2e7 docs torch_npu-npu_moe_gating_top_k_softmax.md, -npu_moe_gating_top_k.md,
-npu_moe_init_routing.md.
"""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide

_SIGMOID = 1


@kernel("npu_moe_gating_top_k_softmax", needs_a2=True)
def top_k_of_softmax(
    x: torch.Tensor, finished: torch.Tensor | None, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the K largest probabilities [..., K], their experts and rows (int32); a finished token has expert E."""
    shares, experts = _largest(wide(x).softmax(-1), k)
    if finished is not None:
        experts = experts.masked_fill(finished.unsqueeze(-1), x.shape[-1])
    tokens = experts.numel() // k
    rows = torch.arange(experts.numel(), device=x.device).reshape(k, tokens).t().reshape(experts.shape)
    return shares.to(x.dtype), experts.to(torch.int32), rows.to(torch.int32)


@kernel("npu_moe_gating_top_k_softmax_v2", needs_a2=True)
def top_k_of_softmax_v2(
    x: torch.Tensor, k: int, finished: torch.Tensor | None, renorm: int | None, output_softmax: bool | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return weights [..., K], experts (int32), and, with ``output_softmax`` but no renorm, all float32 probabilities.

    With ``renorm``, the weights are the softmax of the K largest logits. A finished token has expert E.
    """
    shares = x.detach().float().softmax(-1)
    if renorm:
        logits, experts = _largest(wide(x), k)
        weights = logits.softmax(-1)
    else:
        weights, experts = _largest(shares, k)
    if finished is not None:
        experts = experts.masked_fill(finished.unsqueeze(-1), x.shape[-1])
    everything = shares if output_softmax and not renorm else shares.new_empty(0)
    return weights.to(x.dtype), experts.to(torch.int32), everything


@kernel("npu_moe_gating_top_k", needs_a2=True)
def top_k(
    x: torch.Tensor,
    k: int,
    bias: torch.Tensor | None,
    k_group: int,
    group_count: int,
    group_select_mode: int,
    renorm: int,
    norm_type: int,
    out_flag: bool,
    routed_scaling_factor: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return weights [T, K], experts (int32), and, with ``out_flag``, the normalised logits [T, E] in float32.

    Only experts of the ``k_group`` best groups are chosen. Groups are ranked by their largest value, or by the sum of
    their two largest values.
    """
    shares = _normalised(x, norm_type)
    biased = shares if bias is None else shares + wide(bias)
    if group_count > 1:
        grouped = biased.reshape(*x.shape[:-1], group_count, -1)
        of_group = grouped.amax(-1) if group_select_mode == 0 else grouped.topk(2, -1)[0].sum(-1)
        best = _largest(of_group, k_group)[1]
        kept = torch.zeros_like(of_group, dtype=torch.bool).scatter_(-1, best, True)
        biased = grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).reshape(x.shape)
    experts = _largest(biased, k)[1]
    weights = shares.gather(-1, experts)
    if norm_type == _SIGMOID or renorm:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    weights = weights * routed_scaling_factor
    return weights.to(x.dtype), experts.to(torch.int32), shares.float() if out_flag else shares.new_empty(0).float()


@kernel("npu_moe_gating_top_k_backward", needs_a2=True)
def top_k_backward(
    x_norm: torch.Tensor,
    grad_y: torch.Tensor,
    expertIdx: torch.Tensor,  # noqa: N803 - torch_npu's name
    renorm: int,
    norm_type: int,
    routed_scaling_factor: float,
    eps: float,
) -> torch.Tensor:
    """Return the gradient of the logits from the gradient of the weights, using the normalised logits."""
    shares, experts = wide(x_norm), expertIdx.long()
    chosen = shares.gather(-1, experts)
    grad = wide(grad_y) * routed_scaling_factor
    if norm_type == _SIGMOID or renorm:
        total = chosen.sum(-1, keepdim=True) + eps
        grad = grad / total - (grad * chosen).sum(-1, keepdim=True) / total.square()
    of_shares = torch.zeros_like(shares).scatter_add(-1, experts, grad.to(shares.dtype))
    if norm_type == _SIGMOID:
        return (of_shares * shares * (1 - shares)).to(grad_y.dtype)
    return (shares * (of_shares - (of_shares * shares).sum(-1, keepdim=True))).to(grad_y.dtype)


@kernel("npu_moe_init_routing", needs_a2=True)
def init_routing(
    x: torch.Tensor, row_idx: torch.Tensor, expert_idx: torch.Tensor, active_num: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the rows of at most ``active_num`` tokens [T, H], sorted by expert, their positions, and the experts."""
    experts, order = expert_idx.reshape(-1).sort(dim=0, stable=True)
    from_row = row_idx.reshape(-1)[order].long()
    to_row = torch.zeros_like(from_row)
    to_row[from_row] = torch.arange(from_row.numel(), device=x.device)
    active = min(active_num, x.shape[0]) * expert_idx.shape[-1]
    return x.detach()[from_row[:active] % x.shape[0]], to_row.to(torch.int32), experts.to(torch.int32)


@kernel("npu_moe_compute_expert_tokens", needs_a2=True)
def tokens_of_experts(sorted_expert_for_source_row: torch.Tensor, num_expert: int) -> torch.Tensor:
    """Return the cumulative number of rows of the experts, int32 [E]."""
    experts = torch.arange(num_expert, device=sorted_expert_for_source_row.device)
    return torch.searchsorted(sorted_expert_for_source_row.contiguous(), experts, right=True).to(torch.int32)


@kernel("npu_moe_finalize_routing", needs_a2=True)
def finalize_routing(
    expanded_permuted_rows: torch.Tensor,
    skip1: torch.Tensor | None,
    skip2: torch.Tensor | None,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    expanded_src_to_dst_row: torch.Tensor,
    export_for_source_row: torch.Tensor | None,
    drop_pad_mode: int | None = 0,
) -> torch.Tensor:
    """Return skip1 + skip2 + the sum of scale * (row + bias of its expert) over each token's K rows, [T, H].

    With ``drop_pad_mode`` 1 the rows are [E, C, H], and that of a dropped choice, whose place is -1, is zero.
    """
    rows = wide(expanded_permuted_rows).flatten(0, -2)
    places = expanded_src_to_dst_row.long()
    tokens = places.numel() // (scales.shape[1] if scales is not None else 1)
    chosen = rows[places.clamp(min=0)]
    if drop_pad_mode:
        chosen = chosen.masked_fill((places < 0).unsqueeze(-1), 0)
    # The rows are ordered choice by choice.
    of_choice = chosen.reshape(-1, tokens, rows.shape[-1])
    if bias is not None and export_for_source_row is not None:
        of_choice = of_choice + wide(bias)[export_for_source_row.long().t()]
    if scales is not None:
        of_choice = of_choice * wide(scales).t().unsqueeze(-1)
    result = of_choice.sum(0)
    for skip in (skip1, skip2):
        result = result if skip is None else result + wide(skip)
    return result.to(expanded_permuted_rows.dtype)


def _normalised(x: torch.Tensor, norm_type: int) -> torch.Tensor:
    return torch.sigmoid(wide(x)) if norm_type == _SIGMOID else wide(x).softmax(-1)


def _largest(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the K largest values and their indices; among equal values, the first ones."""
    found, indices = values.sort(dim=-1, descending=True, stable=True)
    return found[..., :k], indices[..., :k]
