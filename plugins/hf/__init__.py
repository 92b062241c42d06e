"""Hugging Face transformers, accelerate and peft: what stands in the way of their training, and fused operations."""

from __future__ import annotations

from ascend_adapt import Patch, hookimpl
from ascend_adapt_plugins.hf import kernel_swaps, processes_on_cpu


@hookimpl
def register_patches() -> list[Patch]:
    """Return every patch of this plugin."""
    return [*processes_on_cpu.PATCHES, *kernel_swaps.PATCHES]
