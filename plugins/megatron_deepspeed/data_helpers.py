"""The C++ helpers of the data sets."""

from __future__ import annotations

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED
from ..compiled_helpers import compiled_helpers

PATCHES = compiled_helpers("megatron.data.dataset_utils:compile_helper", host=(BIGSCIENCE, MEGATRON_DEEPSPEED))
