"""CUDA extensions that are compiled with nvcc when training starts, or must be installed."""

from __future__ import annotations

import importlib.util
from typing import Any

from ascend_adapt import Call, Symptom, wrap

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED
from ..compiled_kernels import compiling_where_there_is_nvcc

NOT_IN_THE_SOURCE = Symptom(reason="the source does not show whether the host has nvcc")
no_build_without_nvcc = compiling_where_there_is_nvcc(
    "no_build_without_nvcc", host=BIGSCIENCE, symptom=NOT_IN_THE_SOURCE
)
# deepspeedai's fork only compiles on CUDA.
no_compiling_on_cuda = compiling_where_there_is_nvcc(
    "no_build_on_cuda_without_nvcc", host=MEGATRON_DEEPSPEED, symptom=NOT_IN_THE_SOURCE, devices="cuda"
)


@wrap(
    "megatron.arguments:validate_args",
    host=MEGATRON_DEEPSPEED,
    why="fused gradient accumulation is the default, and the job ends if an extension of apex is missing, although "
    "the fused code is commented out",
    until="the code base fuses gradient accumulation only if the extension is installed",
    without="crash",
    symptom=Symptom(
        "config.gradient_accumulation_fusion and not _grad_accum_fusion_available",
        at="megatron.core.tensor_parallel.layers:ColumnParallelLinear",
    ),
)
def no_gradient_accumulation_fusion(call: Call) -> Any:
    """Fuse gradient accumulation only if the extension is installed."""
    valid = call.proceed()
    if importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is None:
        valid.gradient_accumulation_fusion = False
    return valid
