"""Patches for both forks named Megatron-DeepSpeed, deepspeedai's (4efb479d) and bigscience-workshop's (8387ae17).

Patches that other code bases also need are in ``old_dependencies``.
"""

from ascend_adapt import Patch, hookimpl, patches_in


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every module here."""
    return patches_in(__name__)
