"""Limits of npu_rms_norm and npu_add_rms_norm."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import Limit, check, closed, document

_PAGE = document("torch_npu-npu_rms_norm.md")
DIMENSIONS = range(2, 9)

DIMENSION_COUNT = Limit("npu_rms_norm", f"the number of dimensions of the input is in {closed(DIMENSIONS)}", _PAGE)
GAMMA_SHAPE = Limit("npu_rms_norm, npu_add_rms_norm", "gamma has the shape of the last dimensions of the input", _PAGE)
DTYPES = Limit(
    "npu_rms_norm",
    "input and gamma have one dtype of float16, bfloat16 and float32, or gamma is float32",
    _PAGE,
)
ADDENDS = Limit(
    "npu_add_rms_norm",
    "x1 and x2 have one shape, and all three inputs have one dtype of float16, bfloat16 and float32",
    document("torch_npu-npu_add_rms_norm.md"),
)
NO_GRADIENT = Limit(
    "npu_add_rms_norm",
    "no input requires grad: the operator has no backward",
    check("config/derivatives.yaml (no entry)"),
    silent=True,
)
