"""Hugging Face transformers, accelerate and peft: what stands in the way of their training, and fused operations."""

from __future__ import annotations

from ascend_adapt import Patch, hookimpl

from . import kernel_swaps, npu_without_cann, processes_on_cpu


@hookimpl
def register_patches() -> list[Patch]:
    """Return every patch of this plugin."""
    return [*npu_without_cann.PATCHES, *processes_on_cpu.PATCHES, *kernel_swaps.PATCHES]
