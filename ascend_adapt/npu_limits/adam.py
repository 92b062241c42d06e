"""Limits of npu_apply_adam and npu_apply_adam_w."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import DOCSTRINGS, Limit, check, closed

_BOTH = "npu_apply_adam, npu_apply_adam_w"
_CODE = check("opapi/ApplyAdamWKernelNpuOpApi.cpp")
DIMENSIONS = range(1, 9)

OUT_ONLY = Limit(_BOTH, "out=(var, m, v) is given", _CODE)
SHAPES = Limit(_BOTH, "grad, var, m and v have one shape", check("test/test_base_ops/test_apply_adam.py"))
DIMENSION_COUNT = Limit(
    "npu_apply_adam_w",
    f"the number of dimensions of grad, var, m and v is in {closed(DIMENSIONS)}",
    f"{DOCSTRINGS} npu_apply_adam_w",
)
ADAM_POWERS = Limit(
    "npu_apply_adam",
    "beta1_power and beta2_power are beta**step, so below 1 (the step divides by 1 - beta1_power)",
    check("test/test_base_ops/test_apply_adam.py"),
    silent=True,
)
ADAM_W_POWERS = Limit(
    "npu_apply_adam_w",
    "beta1_power and beta2_power are beta**(step - 1), in (0, 1]: the operator multiplies by beta itself",
    check("test/test_base_ops/test_apply_adam_w.py"),
    silent=True,
)
AMSGRAD = Limit("npu_apply_adam_w", "max_grad_norm is given if amsgrad is True", _CODE)
