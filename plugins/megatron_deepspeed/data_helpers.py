"""C++ dataset helpers of both Megatron-DeepSpeed forks."""

from __future__ import annotations

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED
from ..compiled_helpers import compiling_if_possible, helpers_of_gpt

COMPILER = compiling_if_possible("megatron.data.dataset_utils:compile_helper", host=(BIGSCIENCE, MEGATRON_DEEPSPEED))
HELPERS = (
    helpers_of_gpt(BIGSCIENCE),
    helpers_of_gpt(MEGATRON_DEEPSPEED, name="data_helpers_of_deepspeedai", sample_index_dtype="int64"),
)
