"""NVTX ranges as no-ops on devices without NVTX."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, replace
from ascend_adapt.patches.declare.terms import Terms


@replace(
    "deepspeed.utils.nvtx:instrument_w_nvtx",
    requires="deepspeed>=0.6",
    devices=("cpu", "npu"),
    why="it marks ranges with NVTX, which fails or does nothing without CUDA, and hides the function's name",
    until="DeepSpeed's decorator checks the accelerator first and keeps the name",
    without="crash",
    symptom=Symptom("return wrapped_fn"),
)
def no_nvtx_instrumentation(func: Any) -> Any:
    """Return the function unchanged."""
    return func


# Newer releases use the accelerator, whose ranges are no-ops without CUDA; these releases use torch at every call.
_WITHOUT_NVTX: Terms = {
    "requires": "deepspeed>=0.6,<0.8.1",
    "devices": ("cpu", "npu"),
    "why": "functions decorated before enable() call it, and without CUDA it raises",
    "until": "support for DeepSpeed 0.8.0 ends",
    "without": "crash",
    "symptom": Symptom("torch.cuda.nvtx.range(func.__qualname__)", at="deepspeed.utils.nvtx:instrument_w_nvtx"),
}


@replace("torch.cuda.nvtx:range_push", **_WITHOUT_NVTX)
def range_push(msg: str) -> int:
    """Do nothing and return depth 0."""
    return 0


@replace("torch.cuda.nvtx:range_pop", **_WITHOUT_NVTX)
def range_pop() -> int:
    """Do nothing and return depth 0."""
    return 0
