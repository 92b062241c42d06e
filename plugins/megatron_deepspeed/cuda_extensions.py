"""CUDA extensions that are compiled with nvcc when training begins, or must have been installed."""

from __future__ import annotations

import importlib.util
from typing import Any

from ascend_adapt import Symptom, wrap

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED
from ..compiled_kernels import compiling_where_there_is_nvcc

ON_THE_MACHINE = Symptom(reason="whether there is nvcc is seen on the machine")
no_compiling_without_nvcc = compiling_where_there_is_nvcc(
    "no_compiling_without_nvcc", host=BIGSCIENCE, symptom=ON_THE_MACHINE
)
# deepspeedai's compiles on CUDA only.
no_compiling_on_cuda = compiling_where_there_is_nvcc(
    "no_compiling_on_cuda_without_nvcc", host=MEGATRON_DEEPSPEED, symptom=ON_THE_MACHINE, devices="cuda"
)


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
