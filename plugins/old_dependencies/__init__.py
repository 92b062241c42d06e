"""Provides dependencies of several code bases that no longer exist, have changed, or are only built for CUDA.

Each patch is limited to the code bases that need it; other libraries in the same process are not affected.
"""

from ascend_adapt import Patch, hookimpl, patches_in


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every module here."""
    return patches_in(__name__)
