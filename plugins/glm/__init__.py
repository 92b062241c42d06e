"""Patches for THUDM's GLM 4f61ed72, for devices and releases of torch and DeepSpeed that it does not support."""

from ascend_adapt import Patch, hookimpl, patches_in


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every module here."""
    return patches_in(__name__)
