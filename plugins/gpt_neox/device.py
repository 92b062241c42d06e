"""Where GPT-NeoX says torch.cuda: before it asks for the number of devices, in deepy.py and in each rank."""

from __future__ import annotations

from ..without_cuda import without_cuda

WITHOUT_CUDA = without_cuda("megatron.neox_arguments.arguments:NeoXArgs.__post_init__", host="gpt-neox")
