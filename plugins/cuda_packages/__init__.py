"""Provides CUDA-only packages (flash_attn, xformers, apex) to CUDA code on other devices, with ascend_adapt's kernels.

An installed package takes precedence. Libraries that check whether such a package is installed do not see these.
"""

from __future__ import annotations

from ascend_adapt import Patch, hookimpl, patches_in


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every module here."""
    return patches_in(__name__)
