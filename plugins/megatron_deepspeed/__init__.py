"""Both forks named Megatron-DeepSpeed, deepspeedai's (4efb479d) and bigscience-workshop's (8387ae17), unmodified.

What they share with other code bases is in ``old_dependencies``.
"""

from ascend_adapt import Patch, hookimpl

from ..code_bases import BIGSCIENCE
from ..without_cuda import without_cuda
from . import (
    attention,
    attention_masks,
    checkpoints,
    configuration,
    cuda_extensions,
    data_helpers,
    gradient_clipping,
    loss,
    optimizer,
    start_time,
)

# deepspeedai's asks DeepSpeed's accelerator for its device; bigscience's says torch.cuda.
WITHOUT_CUDA = without_cuda("megatron.initialize:initialize_megatron", host=BIGSCIENCE)


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every topic."""
    topics = (
        attention,
        attention_masks,
        checkpoints,
        configuration,
        cuda_extensions,
        data_helpers,
        gradient_clipping,
        loss,
        optimizer,
        start_time,
    )
    return [*WITHOUT_CUDA, *(patch for topic in topics for patch in topic.PATCHES)]
