"""Rows of tokens in the order of their experts, which a mixture of experts multiplies next; they may be quantised.

Source: op-plugin@517f2e7 docs torch_npu-npu_moe_init_routing_v2.md, -npu_moe_re_routing.md,
test/test_custom_ops/test_npu_moe_init_routing_quant.py.
"""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.quantised import clamped, with_scale_of_rows
from ascend_adapt.errors import OperatorMissing
from ascend_adapt.npu_limits import expert_routing as limits

_NOT_QUANTISED, _STATIC, _DYNAMIC = -1, 0, 1
_SUMS, _PAIRS = 0, 2


@kernel("npu_moe_init_routing_v2", needs_a2=True)
def init_routing_v2(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    scale: torch.Tensor | None,
    offset: torch.Tensor | None,
    active_num: int,
    expert_num: int,
    expert_tokens_num_type: int,
    expert_tokens_num_flag: bool,
    quant_mode: int,
    active_expert_range: list[int],
    row_idx_type: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the rows of [T, H] sorted by expert, [T * K, H]; the place of each choice; tokens of experts; scales.

    Only experts of ``active_expert_range`` have rows; the rows after theirs are zero. The place of a choice is its row,
    -1 without one; with ``row_idx_type`` 1 it is the choice of each row. Tokens are counted in int64: as sums up to
    each expert (0), as counts (1), or as pairs of an expert that has tokens and their number (2); or not at all.
    """
    start, end = active_expert_range or (0, expert_num)
    rows, places, counts, scales = _sorted_rows(
        x, expert_idx, scale, offset, quant_mode, start, end, active_num, row_idx_type == 1
    )
    if expert_tokens_num_type == _SUMS:
        counts = counts.cumsum(0)
    elif expert_tokens_num_type == _PAIRS:
        used = counts.nonzero().reshape(-1)
        pairs = torch.stack((used + start, counts[used]), 1)
        counts = torch.cat((pairs, pairs.new_zeros(expert_num - len(pairs), 2)))
    return rows, places, counts if expert_tokens_num_flag else counts.new_empty(0), scales


@kernel("npu_moe_init_routing_quant", needs_a2=True)
def init_routing_quant(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    scale: torch.Tensor | None,
    offset: torch.Tensor | None,
    active_num: int,
    expert_num: int,
    expert_tokens_num_mode: int,
    quant_mode: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return int8 rows sorted by expert; the row of each choice; tokens of experts; nothing; scales of the rows.

    Tokens are counted in int32 as sums up to each expert (1) or as counts (2).
    """
    rows, places, counts, scales = _sorted_rows(
        x, expert_idx, scale, offset, quant_mode, 0, expert_num, active_num, False
    )
    counts = (counts.cumsum(0) if expert_tokens_num_mode == 1 else counts).to(torch.int32)
    return rows, places, counts, counts.new_empty(0), scales


@kernel("npu_moe_re_routing", needs_a2=True)
def re_routing(
    tokens: torch.Tensor,
    expert_token_num_per_rank: torch.Tensor,
    per_token_scales: torch.Tensor | None,
    expert_token_num_type: int,
    idx_type: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens [A, H], sorted by rank, in the order of experts; their scales, their rows, and tokens of experts.

    ``expert_token_num_per_rank`` [N, E] is how many tokens each rank sent to each expert.
    """
    limits.MODES.require(
        (expert_token_num_type, idx_type) == (1, 0),
        f"expert_token_num_type is {expert_token_num_type}, idx_type is {idx_type}",
    )
    counts = expert_token_num_per_rank
    if tokens.is_meta:
        source = counts.new_empty(tokens.shape[0])
    else:
        total = int(counts.sum())
        limits.EVERY_TOKEN.require(
            total == tokens.shape[0], f"the counts' sum is {total}, tokens are {tokens.shape[0]}"
        )
        expert_of_token = torch.arange(counts.shape[1]).repeat(counts.shape[0]).repeat_interleave(counts.reshape(-1))
        source = torch.argsort(expert_of_token, stable=True)
    scales = torch.ones_like(source, dtype=torch.float32) if per_token_scales is None else per_token_scales[source]
    return tokens.detach()[source], scales, source.to(torch.int32), counts.sum(0, dtype=counts.dtype)


def _sorted_rows(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    scale: torch.Tensor | None,
    offset: torch.Tensor | None,
    quant_mode: int,
    start: int,
    end: int,
    active_num: int,
    is_by_row: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the first ``active_num`` rows (0: all), the places of choices, the rows of each expert, and the scales."""
    if quant_mode not in (_NOT_QUANTISED, _STATIC, _DYNAMIC):
        raise OperatorMissing(
            f"npu::npu_moe_init_routing: quant_mode={quant_mode}, expected -1, 0 or 1 — int4 and 8-bit "
            "floats are not emulated"
        )
    choices, width = expert_idx.shape[-1], x.shape[-1]
    experts = expert_idx.reshape(-1)
    count = experts.numel()
    kept = count if active_num <= 0 else min(active_num, count)
    integers = x.dtype if quant_mode == _NOT_QUANTISED else torch.int8
    if x.is_meta:
        places = experts.new_empty(count, dtype=torch.int32)
        counts = experts.new_empty(end - start, dtype=torch.int64)
        return x.new_empty((kept, width), dtype=integers), places, counts, x.new_empty(count, dtype=torch.float32)
    experts, order = experts.masked_fill(experts < start, torch.iinfo(experts.dtype).max).sort(stable=True)
    active = int((experts < end).sum())
    local_experts, source = experts[:active].long() - start, order[:active] // choices
    rows = x.detach()[source]
    scales = torch.zeros(count)
    if quant_mode == _STATIC:
        limits.STATIC.require(scale is not None and offset is not None, f"scale is {scale}, offset is {offset}")
        rows = clamped((wide(rows) * wide(scale) + wide(offset)).round(), torch.int8)
    elif quant_mode == _DYNAMIC:
        values = rows.float()
        if scale is not None:
            values = values * (scale if scale.shape[0] == 1 else scale[local_experts]).detach()
        rows, scales[:active] = with_scale_of_rows(values, torch.int8)
    elif scale is not None:
        scales[:active] = scale.detach()[source]
    if is_by_row:
        places = order
    else:
        places = torch.full((count,), -1)
        places[order[:active]] = torch.arange(active)
    padded = torch.cat((rows, rows.new_zeros(count - active, width)))
    counts = torch.bincount(local_experts, minlength=end - start)
    return padded[:kept], places.to(torch.int32), counts, scales
