"""Limits of npu_layer_norm_eval."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, check, document

SHAPES = Limit(
    "npu_layer_norm_eval",
    "normalized_shape is the shape of the last dimensions of the input, and of weight and bias",
    document("torch_npu-npu_layer_norm_eval.md"),
)
NO_GRADIENT = Limit(
    "npu_layer_norm_eval",
    "no input requires grad: the operator has no backward",
    check("config/derivatives.yaml (no entry)"),
    silent=True,
)
