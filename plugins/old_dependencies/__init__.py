"""What several code bases need of dependencies that are gone, have changed, or are built for CUDA only, each once.

Everything here is limited to the code bases that ask for it: other libraries in the same process see nothing of it.
"""

from ascend_adapt import Patch, hookimpl

from . import (
    apex,
    deepspeed_compression,
    image_libraries,
    layer_norm_extensions,
    lm_dataformat,
    numpy_names,
    pkg_resources,
    sentence_splitting,
    softmax_extensions,
    torch_six,
    transformers_tokenizers,
    type_names,
)


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every topic."""
    topics = (
        apex,
        deepspeed_compression,
        image_libraries,
        layer_norm_extensions,
        lm_dataformat,
        numpy_names,
        pkg_resources,
        sentence_splitting,
        softmax_extensions,
        torch_six,
        transformers_tokenizers,
        type_names,
    )
    return [patch for topic in topics for patch in topic.PATCHES]
