"""The C++ helpers of the data sets."""

from __future__ import annotations

from ..compiled_helpers import compiled_helpers
from .releases import HOST, REQUIRES

PATCHES = compiled_helpers(
    "megatron.core.datasets.utils:compile_helpers",
    "megatron.core.datasets.helpers_cpp",
    host=HOST,
    requires=REQUIRES,
    sample_index_dtype="int64",
)
