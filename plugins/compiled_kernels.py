"""CUDA extensions that a code base compiles with nvcc when training starts."""

from __future__ import annotations

import logging
import subprocess
from typing import Any

from ascend_adapt import Call, CodeBase, Patch, Symptom, wrap

# ninja is missing, the compiler does not support a GPU architecture, or the folder is not writable.
_FAILED = (RuntimeError, OSError, subprocess.SubprocessError)


def compiling_where_there_is_nvcc(
    name: str, *, host: CodeBase | str, symptom: Symptom, devices: str | tuple[str, ...] = ()
) -> Patch:
    """Return the patch for a code base's ``megatron.fused_kernels.load``, on ``devices``."""

    @wrap(
        "megatron.fused_kernels:load",
        name=name,
        host=host,
        devices=devices,
        why="it runs nvcc, and the job ends if nvcc is missing or fails; its extensions are provided for every device",
        until="the code base loads its extensions only if a configuration needs them",
        without="crash",
        symptom=symptom,
    )
    def without_nvcc(call: Call) -> Any:
        """Compile if a GPU and nvcc are present; otherwise, or if compilation fails, use the provided extensions."""
        import torch
        from torch.utils.cpp_extension import CUDA_HOME

        # nvcc also works without a GPU, but takes minutes to compile kernels that do not support CPU tensors.
        if not (torch.version.cuda and CUDA_HOME and torch.cuda.is_available()):
            return None
        try:
            return call.proceed()
        except _FAILED as error:
            message = "megatron.fused_kernels: compiled nothing (%s) — continuing with ascend_adapt's kernels"
            logging.getLogger(__name__).warning(message, error)
            return None

    return without_nvcc
