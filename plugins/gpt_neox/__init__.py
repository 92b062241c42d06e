"""Patches for GPT-NeoX v2.0 and ea7aefd8, for devices and releases of torch and DeepSpeed that they do not support.

The tag v2.0 (9610391a) is not valid Python, because it does not close a docstring. Here, v2.0 means the next commit,
6edf2418, which only closes the docstring.
"""

from ascend_adapt import Patch, hookimpl, patches_in


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every module here."""
    return patches_in(__name__)
