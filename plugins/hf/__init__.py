"""Hugging Face transformers, accelerate and peft: fixes for training, and fused operations."""

from ascend_adapt import Patch, hookimpl, patches_in


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every module here."""
    return patches_in(__name__)
