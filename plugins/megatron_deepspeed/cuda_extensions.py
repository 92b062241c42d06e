"""CUDA extensions that are compiled with nvcc when training begins, or must have been installed."""

from __future__ import annotations

import importlib.util
from typing import Any

from ascend_adapt import Patch, Symptom, wrap

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED


def _no_compiling(name: str, host: str, devices: str | tuple[str, ...] = ()) -> Patch:
    """Return the patch of one code base, for the devices on which it compiles."""

    @wrap(
        "megatron.fused_kernels:load",
        name=name,
        host=host,
        devices=devices,
        why="it runs nvcc, and ends the job where there is none; what it would compile is provided for every device",
        until="the code base asks for its extensions only when a configuration needs them",
        without="crash",
        symptom=Symptom(reason="whether there is nvcc is seen on the machine"),
    )
    def without_nvcc(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compile where there are a GPU and nvcc, else leave it to the modules that are provided."""
        import torch
        from torch.utils.cpp_extension import CUDA_HOME

        return wrapped(*args, **kwargs) if torch.version.cuda and CUDA_HOME else None

    return without_nvcc


no_compiling_without_nvcc = _no_compiling("no_compiling_without_nvcc", BIGSCIENCE)
# deepspeedai's compiles on CUDA only.
no_compiling_on_cuda = _no_compiling("no_compiling_on_cuda_without_nvcc", MEGATRON_DEEPSPEED, "cuda")


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


PATCHES = (no_compiling_without_nvcc, no_compiling_on_cuda, no_gradient_accumulation_fusion)
