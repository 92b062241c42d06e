"""Documented limits of torch_npu's operators, one module for each family.

Kernel backends skip calls that exceed a limit, the emulation rejects such calls as an NPU would, and
docs/npu-operators.md lists the limits.
"""

from __future__ import annotations

from ascend_adapt.npu_limits import (
    adam,
    batch_norm,
    bmm,
    boxes,
    casts,
    collective_products,
    cross_entropy,
    dropout,
    expert_routing,
    float_status,
    fusion_attention,
    gelu,
    grouped_matmul,
    layer_norm,
    linear,
    linear_cross_entropy,
    masked_softmax,
    products,
    quantised,
    recurrent,
    ring_attention,
    rms_norm,
    rotary,
    slicing,
    swiglu,
    token_permutation,
    transpose,
)
from ascend_adapt.npu_limits.limit import Limit

_FAMILIES = (
    *(fusion_attention, ring_attention, masked_softmax, rms_norm, layer_norm, rotary, swiglu, gelu, cross_entropy),
    *(linear_cross_entropy, adam, batch_norm, casts, bmm, linear, dropout, transpose, float_status, recurrent),
    *(products, grouped_matmul, token_permutation, expert_routing, slicing, quantised, boxes, collective_products),
)


def all_limits() -> list[Limit]:
    """Return all limits, grouped by family."""
    return [limit for family in _FAMILIES for limit in vars(family).values() if isinstance(limit, Limit)]
