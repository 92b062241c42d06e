"""Megatron-core and Megatron-LM, as the distribution ``megatron-core`` or a checkout of Megatron-LM has them."""

from ascend_adapt import Patch, hookimpl

from . import (
    collectives,
    cuda_extensions,
    data_helpers,
    devices,
    fused_operations,
    missing_names,
    optimizer,
    resuming,
    type_names,
    without_triton,
)


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every topic."""
    topics = (
        devices,
        type_names,
        collectives,
        fused_operations,
        optimizer,
        resuming,
        data_helpers,
        cuda_extensions,
        without_triton,
        missing_names,
    )
    return [patch for topic in topics for patch in topic.PATCHES]
