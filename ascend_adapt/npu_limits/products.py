"""Limits of device generations: the 910A (Atlas training series), the Atlas A2 (910B) and the 950."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import OP_PLUGIN, Limit

A2_OPERATOR = Limit(
    "npu_fusion_attention, npu_ring_attention_update, npu_swiglu, npu_cross_entropy_loss, npu_add_rms_norm, "
    "npu_apply_rotary_pos_emb",
    "the device is an Atlas A2 (910B) or later: the 910A does not have the operator",
    f"{OP_PLUGIN} docs, the tables of supported products",
)
FLOAT8 = Limit(
    "every operator",
    "no tensor is float8 before the Ascend950: an Atlas A2 (910B) stores and copies it, and computes nothing with it",
    f"{OP_PLUGIN} docs, the dtypes by product; opapi/ScaledMmKernelNpuOpApi.cpp",
)
BFLOAT16 = Limit("every operator", "no tensor is bfloat16 on a 910A", f"{OP_PLUGIN} docs, the dtypes by product")
