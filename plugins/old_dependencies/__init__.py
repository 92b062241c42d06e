"""What several code bases need of dependencies that are gone, have changed, or are built for CUDA only, each once.

Everything here is limited to the code bases that ask for it: other libraries in the same process see nothing of it.
"""

from ascend_adapt import Patch, hookimpl, patches_in


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every module here."""
    return patches_in(__name__)
