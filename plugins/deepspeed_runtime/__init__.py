"""DeepSpeed from 0.6.0 on, on devices and with a torch and numpy that its releases do not know.

Version ranges were read off all 92 releases on PyPI from 0.6.0 to 0.19.8, and are checked against their sources.
"""

from ascend_adapt import Patch, hookimpl

from . import (
    accelerators,
    checkpoints,
    communication,
    configuration,
    cuda_architectures,
    extension_builds,
    gradient_checks,
    gradient_clipping,
    jit_builds,
    launcher,
    nvtx,
    old_names,
    overflow,
    pipeline,
)


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every topic."""
    topics = (
        accelerators,
        checkpoints,
        communication,
        configuration,
        cuda_architectures,
        extension_builds,
        gradient_checks,
        gradient_clipping,
        jit_builds,
        launcher,
        nvtx,
        old_names,
        overflow,
        pipeline,
    )
    return [patch for topic in topics for patch in topic.PATCHES]
