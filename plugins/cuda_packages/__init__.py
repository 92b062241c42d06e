"""Packages built for CUDA only, for CUDA code on other devices: what they compute, on the kernels of ascend_adapt.

A real package wins. Libraries that ask whether such a package is installed see none.
"""

from __future__ import annotations

from ascend_adapt import Patch, hookimpl, patches_in


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every module here."""
    return patches_in(__name__)
