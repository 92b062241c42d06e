"""THUDM's GLM 4f61ed72, on devices and with a torch and DeepSpeed that it does not know."""

from ascend_adapt import Patch, hookimpl

from . import attention, checkpoints, corpora, data_parallel, device


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every topic."""
    return [patch for topic in (attention, checkpoints, corpora, data_parallel, device) for patch in topic.PATCHES]
