"""The C++ helpers of the data sets."""

from __future__ import annotations

from ..code_bases import GPT_NEOX
from ..compiled_helpers import compiled_helpers

PATCHES = compiled_helpers("megatron.data.data_utils:compile_helper", host=GPT_NEOX)
