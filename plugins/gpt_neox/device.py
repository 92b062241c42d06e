"""GPT-NeoX on devices other than CUDA: the patch acts before GPT-NeoX counts devices, in deepy.py and in each rank."""

from __future__ import annotations

from ..without_cuda import without_cuda

WITHOUT_CUDA = without_cuda("megatron.neox_arguments.arguments:NeoXArgs.__post_init__", host="gpt-neox")
