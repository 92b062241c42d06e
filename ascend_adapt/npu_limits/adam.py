"""Limits of npu_apply_adam, npu_apply_adam_w and npu_bert_apply_adam."""

from __future__ import annotations

from ascend_adapt.npu_limits.limit import DOCSTRINGS, Limit, check, closed, document

_ALL = "npu_apply_adam, npu_apply_adam_w, npu_bert_apply_adam"
_CODE = check("opapi/ApplyAdamWKernelNpuOpApi.cpp")
DIMENSIONS = range(1, 9)

OUT_ONLY = Limit(_ALL, "out=(var, m, v) is given", _CODE)
SHAPES = Limit(_ALL, "grad, var, m and v have one shape", check("test/test_base_ops/test_apply_adam.py"))
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
BERT_DTYPES = Limit(
    "npu_bert_apply_adam",
    "grad, var, m and v have one dtype, float16 or float32",
    document("（beta）torch_npu-npu_bert_apply_adam.md"),
)
BERT_CLIPPING = Limit(
    "npu_bert_apply_adam",
    "max_grad_norm is 1, or at most 0 to not clip (the kernel divides by global_grad_norm if it is above 1)",
    "CANN's apply_adam_v2.py",
    silent=True,
)
BERT_STEP_SIZE = Limit("npu_bert_apply_adam", "step_size is given if adam_mode is 1", "CANN's apply_adam_v2.py")
