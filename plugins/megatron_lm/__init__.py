"""Patches for Megatron-core and Megatron-LM: the distribution ``megatron-core`` or a checkout of Megatron-LM."""

from ascend_adapt import Patch, hookimpl, patches_in


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every module here."""
    return patches_in(__name__)
