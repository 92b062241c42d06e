"""CUDA extensions that are compiled with nvcc when training begins, or must have been installed."""

from __future__ import annotations

import importlib.util
from typing import Any

from ascend_adapt import Symptom, wrap

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED


@wrap(
    "megatron.fused_kernels:load",
    host=(BIGSCIENCE, MEGATRON_DEEPSPEED),
    why="it runs nvcc, and ends the job where there is none; what it would compile is provided for every device",
    until="the code base asks for its extensions only when a configuration needs them",
    without="crash",
    symptom=Symptom(reason="whether there is nvcc is seen on the machine"),
)
def no_compiling_without_nvcc(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compile where there are a GPU and nvcc, else leave it to the modules that are provided."""
    import torch
    from torch.utils.cpp_extension import CUDA_HOME

    return wrapped(*args, **kwargs) if torch.version.cuda and CUDA_HOME else None


@wrap(
    "megatron.arguments:validate_args",
    host=MEGATRON_DEEPSPEED,
    why="gradient accumulation is fused by default, which needs an extension of apex, or the job ends; its code is "
    "commented out, so that without the fusion the same is computed",
    until="the code base fuses it only where it can",
    without="crash",
    symptom=Symptom(
        "config.gradient_accumulation_fusion and not _grad_accum_fusion_available",
        at="megatron.core.tensor_parallel.layers:ColumnParallelLinear",
    ),
)
def no_gradient_accumulation_fusion(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Fuse gradient accumulation only where the extension is installed."""
    valid = wrapped(*args, **kwargs)
    if importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is None:
        valid.gradient_accumulation_fusion = False
    return valid


PATCHES = (no_compiling_without_nvcc, no_gradient_accumulation_fusion)
