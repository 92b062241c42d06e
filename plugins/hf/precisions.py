"""Precisions that transformers' TrainingArguments reject without a GPU: tf32 and, on a CPU, bf16.

Source: transformers 4.37.2, 4.57.6 and 5.24.0.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from ascend_adapt import Call, Symptom, wrap

logger = logging.getLogger("ascend_adapt")
_ARGUMENTS = "transformers.training_args:TrainingArguments.__post_init__"
_checking: list[Any] = []


@contextlib.contextmanager
def _during_the_checks(arguments: Any) -> Iterator[None]:
    _checking.append(arguments)
    try:
        yield
    finally:
        _checking.remove(arguments)


@wrap(
    _ARGUMENTS,
    requires="transformers>=4.37",
    devices=("cpu", "npu"),
    why="tf32=True raises an error without an Ampere GPU; other devices have no TF32, so it has no effect on them",
    until="transformers ignores tf32 on devices without it",
    without="crash",
    symptom=Symptom(reason="the check is in a method that later releases split"),
)
def tf32_without_a_gpu(call: Call) -> None:
    """Omit tf32=True, with a warning."""
    if call.instance.tf32:
        logger.warning("ascend_adapt: TrainingArguments: tf32=True has no effect on this device")
        call.instance.tf32 = None
    call.proceed()


@wrap(
    _ARGUMENTS,
    requires="transformers>=4.37",
    devices="cpu",
    why="bf16=True raises an error without a GPU unless use_cpu=True is set; a CPU supports bf16",
    until="transformers accepts bf16 on a host without a GPU",
    without="crash",
    symptom=Symptom(reason="the check is in a method that later releases split"),
)
def bf16_without_a_gpu(call: Call) -> None:
    """Make bf16_support_check report support during the checks."""
    with _during_the_checks(call.instance):
        call.proceed()


@wrap(
    "transformers.utils.import_utils:is_torch_bf16_gpu_available",
    requires="transformers>=4.37",
    devices="cpu",
    why="TrainingArguments(bf16=True) calls it to check whether the device supports bf16",
    until="transformers accepts bf16 on a host without a GPU",
    without="crash",
    symptom=Symptom("torch.cuda.is_bf16_supported()"),
)
def bf16_support_check(call: Call) -> bool:
    """Return True to TrainingArguments, and transformers' result to other callers."""
    return bool(_checking) or bool(call.proceed())
