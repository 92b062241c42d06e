"""CUDA extensions that a code base compiles with nvcc, for itself, when training begins."""

from __future__ import annotations

import logging
import subprocess
from typing import Any

from ascend_adapt import CodeBase, Patch, Symptom, wrap

# No ninja, a compiler that refuses a GPU that the code base names, a folder that may not be written to.
_FAILED = (RuntimeError, OSError, subprocess.SubprocessError)


def compiling_where_there_is_nvcc(
    name: str, *, host: CodeBase | str, symptom: Symptom, devices: str | tuple[str, ...] = ()
) -> Patch:
    """Return the patch of a code base's ``megatron.fused_kernels.load``, for the devices on which it compiles."""

    @wrap(
        "megatron.fused_kernels:load",
        name=name,
        host=host,
        devices=devices,
        why="it runs nvcc, and ends the job where there is none, or where it fails; what it would compile is provided "
        "for every device",
        until="the code base asks for its extensions only when a configuration needs them",
        without="crash",
        symptom=symptom,
    )
    def without_nvcc(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compile where there are a GPU and nvcc; where not, or that fails, leave it to what is provided."""
        import torch
        from torch.utils.cpp_extension import CUDA_HOME

        # nvcc compiles without a GPU, too: for minutes, what tensors on a CPU must not be handed to.
        if not (torch.version.cuda and CUDA_HOME and torch.cuda.is_available()):
            return None
        try:
            return wrapped(*args, **kwargs)
        except _FAILED as error:
            told = "megatron.fused_kernels: compiled nothing (%s) — go on with ascend_adapt's kernels in their place"
            logging.getLogger(__name__).warning(told, error)
            return None

    return without_nvcc
