"""What the older generation, the 910A (Atlas training series), does not have of these operators."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ascend_adapt.emulation import saturation
from ascend_adapt.emulation.operators.limits import OP_PLUGIN, Limit

_TABLES = f"{OP_PLUGIN} docs, the tables of supported products"

A2_OPERATOR = Limit(
    "npu_fusion_attention, npu_ring_attention_update, npu_swiglu, npu_cross_entropy_loss, npu_add_rms_norm, "
    "npu_apply_rotary_pos_emb",
    "the device is an Atlas A2 (910B) or later: the 910A has no such operator",
    _TABLES,
)
BFLOAT16 = Limit("every operator", "no tensor is bfloat16 on a 910A", f"{OP_PLUGIN} docs, the dtypes by product")


def require(needs_a2: bool, tensors: Iterable[torch.Tensor]) -> None:
    """Check that the device has an operator, and the dtypes of its tensors.

    Raises:
        LimitNotKept: it has not.
    """
    if not saturation.is_on():
        return
    A2_OPERATOR.require(not needs_a2, "the device is a 910A")
    BFLOAT16.require(all(tensor.dtype != torch.bfloat16 for tensor in tensors), "a tensor is bfloat16")
