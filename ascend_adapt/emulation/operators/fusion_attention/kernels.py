"""npu_fusion_attention, its versions 2 and 3, and their gradients.

All versions share one implementation, which takes arguments by name (``Arguments.of``). v1 and v3 spell pre_tockens,
v2 spells pre_tokens. v3 takes lengths as host tensors, and returns the seed and offset as host tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from ascend_adapt.emulation import report
from ascend_adapt.emulation.full_size import flops, values
from ascend_adapt.emulation.operators.dropout_mask import draw, keep_mask, unpacked
from ascend_adapt.emulation.operators.fusion_attention.arguments import TAKEN, Arguments
from ascend_adapt.emulation.operators.fusion_attention.arithmetic import backward, forward
from ascend_adapt.emulation.operators.fusion_attention.call import FusionAttentionCall
from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.npu_limits import fusion_attention as limits

_HOST = ("actual_seq_qlen", "actual_seq_kvlen", "seed", "offset")
# The gradients that each version returns, in order.
_RESULTS = ("query", "key", "value", "pse", "sink")
_RESULTS_V2 = ("query", "key", "value", "pse", "query_rope", "key_rope", "sink")


@kernel("npu_fusion_attention", takes=TAKEN, needs_a2=True)
def fusion_attention(**given: Any) -> tuple[Any, ...]:
    """Return dropout(softmax(mask(scale * (QK^T + pse)))) V, row maxima and sums, (empty), seed, offset, numels."""
    return _forward(FusionAttentionCall(Arguments.of(given)), given)


@kernel("npu_fusion_attention_v2", takes=TAKEN, needs_a2=True)
def fusion_attention_v2(**given: Any) -> tuple[Any, ...]:
    """Return the same results as v1; pse_type 0 adds pse after scaling, pse_type 1 before scaling, as v1 does."""
    return _forward(FusionAttentionCall(Arguments.of(given), causal_needs_keys=True), given)


@kernel("npu_fusion_attention_v3", takes=TAKEN, host=_HOST, host_results=(4, 5), needs_a2=True)
def fusion_attention_v3(**given: Any) -> tuple[Any, ...]:
    """Return the same results as v1, except that seed and offset are tensors."""
    *tensors, seed, offset, _ = _forward(FusionAttentionCall(Arguments.of(given)), given)
    return (*tensors, torch.tensor([seed], device="cpu"), torch.tensor([offset], device="cpu"))


@kernel("npu_fusion_attention_grad", takes=TAKEN, needs_a2=True)
def fusion_attention_grad(**given: Any) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of query, key, value, pse and sink."""
    return _grad(given)


@kernel("npu_fusion_attention_grad_v2", takes=TAKEN, needs_a2=True)
def fusion_attention_grad_v2(**given: Any) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of query, key, value, pse, query_rope, key_rope and sink."""
    gradients = _backward(FusionAttentionCall(Arguments.of(given), causal_needs_keys=True), given)
    return tuple(gradients[name] for name in _RESULTS_V2)


@kernel("npu_fusion_attention_grad_v3", takes=TAKEN, host=_HOST, needs_a2=True)
def fusion_attention_grad_v3(**given: Any) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of query, key, value, pse and sink."""
    return _grad(given)


def _grad(given: dict[str, Any]) -> tuple[torch.Tensor | None, ...]:
    gradients = _backward(FusionAttentionCall(Arguments.of(given)), given)
    return tuple(gradients[name] for name in _RESULTS)


def _forward(call: FusionAttentionCall, given: dict[str, Any]) -> tuple[Any, ...]:
    arguments, count = call.arguments, call.score_count
    seed, offset = given.get("seed") or 0, given.get("offset") or 0
    keep = None
    if arguments.keep_prob < 1:
        mask = given.get("dropout_mask")
        if mask is None and seed == 0:
            seed, offset = draw()
        keep = keep_mask(count, arguments.keep_prob, seed, offset)
        if mask is not None:
            fits = mask.dtype == torch.uint8 and mask.numel() * 8 >= count
            same = fits and (values.only_shapes() or torch.equal(unpacked(mask, count), keep))
            limits.DROPOUT_MASK.require(same, f"dropout_mask differs from that of seed={seed}, offset={offset}")
    report.operations(flops.of_fusion_attention(call, backward=False))
    result = call.layout.like(arguments.query.detach(), arguments.value, call.heads, call.kv_heads)
    largest, total = call.empty_statistics(), call.empty_statistics()
    for rows, _, problem in call.problems(keep):
        attention, row_max, row_sum = forward(problem)
        call.layout.sequence(result, rows, call.heads).copy_(attention)
        call.statistics(largest, rows).copy_(row_max)
        call.statistics(total, rows).copy_(row_sum)
    return result, largest, total, arguments.query.detach().new_empty(0), seed, offset, count


def _backward(call: FusionAttentionCall, given: dict[str, Any]) -> dict[str, torch.Tensor | None]:
    """Return the gradient of each given differentiable argument, by name."""
    arguments, layout = call.arguments, call.layout
    keep = None
    if arguments.keep_prob < 1:
        seed, offset = (0 if given[name] is None else int(given[name]) for name in ("seed", "offset"))
        keep = keep_mask(call.score_count, arguments.keep_prob, seed, offset)
    report.operations(flops.of_fusion_attention(call, backward=True))
    sources = {name: getattr(arguments, name) for name in _RESULTS_V2 if getattr(arguments, name) is not None}
    if not call.bias.full:
        sources.pop("pse", None)
    # Sums over heads and sequences stay in the wide dtype until the end.
    sums = {name: torch.zeros_like(wide(source)) for name, source in sources.items()}
    shared = call.heads // call.kv_heads
    for index, (rows, columns, problem) in enumerate(call.problems(keep)):
        dy = wide(layout.sequence(given["dy"], rows, call.heads))
        largest, total = (call.statistics(given[name], rows)[..., :1] for name in ("softmax_max", "softmax_sum"))
        slopes = backward(problem, dy, largest.to(dy.dtype), total.to(dy.dtype))
        dkey, dvalue = (part.unflatten(0, (-1, shared)).sum(1) for part in (slopes.key, slopes.value))
        for name, part, place, heads in (
            ("query", slopes.query, rows, call.heads),
            ("key", dkey, columns, call.kv_heads),
            ("value", dvalue, columns, call.kv_heads),
        ):
            own = layout.sequence(sums[name], place, heads)
            size = own.shape[-1]
            own.copy_(part[..., :size])
            if f"{name}_rope" in sums:
                layout.sequence(sums[f"{name}_rope"], place, heads).copy_(part[..., size:])
        if call.bias.full:
            to = sums["pse"][min(index, sums["pse"].shape[0] - 1)]
            to += slopes.scores.sum_to_size(to.shape)
        if slopes.sink is not None:
            sums["sink"] += slopes.sink
    return {name: sums[name].to(sources[name].dtype) if name in sums else None for name in _RESULTS_V2}
