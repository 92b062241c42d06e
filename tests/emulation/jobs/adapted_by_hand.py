"""The script for a GPU, adapted by hand as in Ascend's ModelZoo: these imports come first."""

import deepspeed_npu  # noqa: F401
import torch_npu  # noqa: F401
from torch_npu.contrib import transfer_to_npu  # noqa: F401

import written_for_cuda  # noqa: F401  isort: skip
