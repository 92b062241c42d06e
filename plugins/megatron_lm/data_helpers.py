"""C++ dataset helpers of Megatron-core."""

from __future__ import annotations

from ..compiled_helpers import compiling_if_possible, helpers_of_gpt
from .releases import HOST, REQUIRES

COMPILER = compiling_if_possible("megatron.core.datasets.utils:compile_helpers", host=HOST, requires=REQUIRES)
HELPERS = helpers_of_gpt(
    HOST, module="megatron.core.datasets.helpers_cpp", requires=REQUIRES, sample_index_dtype="int64"
)
