"""C++ dataset helpers of GPT-NeoX, which only has GPT datasets, so that nothing needs to be compiled."""

from __future__ import annotations

from ..code_bases import GPT_NEOX
from ..compiled_helpers import compiling_nothing, helpers_of_gpt

COMPILER = compiling_nothing("megatron.data.data_utils:compile_helper", host=GPT_NEOX)
HELPERS = helpers_of_gpt(GPT_NEOX)
