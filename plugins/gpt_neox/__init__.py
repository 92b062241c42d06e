"""GPT-NeoX v2.0 (9610391a) and newest (ea7aefd8), on devices and with a torch and DeepSpeed that they do not know."""

from ascend_adapt import Patch, hookimpl

from . import device, evaluation


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every topic."""
    return [patch for topic in (device, evaluation) for patch in topic.PATCHES]
