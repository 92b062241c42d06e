"""Megatron-core on devices other than CUDA: ``torch.cuda``, torch.compile and device properties."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, replace, wrap

from ..without_cuda import without_cuda
from .releases import HOST, TRAINING

# Megatron-core calls this function during its import, before it or the script uses a device.
FIRST_CALLED = "megatron.core.utils:is_torch_min_version"
WITHOUT_CUDA = without_cuda(FIRST_CALLED, host=HOST, any_script=True)


# No requires=, because it is used while megatron.core is imported, when the version of a checkout is not yet known.
@replace(
    "megatron.core.jit:jit_fuser",
    host=HOST,
    devices=("cpu", "npu"),
    why="it is torch.compile; transfer_to_npu breaks torch_npu's inductor, and on a CPU, compilation takes minutes",
    until="torch.compile works on an NPU with transfer_to_npu",
    without="crash",
    symptom=Symptom("jit_fuser = torch.compile", at="megatron.core.jit"),
)
def no_compilation(model: Any = None, **options: Any) -> Any:
    """Return the function unchanged; if only options are given, return a decorator that does so."""
    return model if model is not None else lambda function: function


@wrap(
    "megatron.training.initialize:_warmup_jit_function",
    host=TRAINING,
    devices=("cpu", "npu"),
    why="nothing is compiled, so no warmup is needed; on a CPU, the warmup consumes random numbers of the weights",
    until="torch.compile works on an NPU with transfer_to_npu",
    without="slower",
    symptom=Symptom("torch.rand(args.hidden_size, dtype=dtype, device='cuda')"),
)
def no_warmup(call: Call) -> None:
    """Skip the warmup."""


@replace(
    "megatron.training.utils:get_device_arch_version",
    host=TRAINING,
    devices="npu",
    why="it reads the compute capability of a GPU, and torch_npu returns None",
    until="Megatron-LM only reads it on GPUs",
    without="crash",
    symptom=Symptom("get_device_properties(torch.device('cuda:0')).major"),
)
def device_arch_version() -> int:
    """Return 8, the first GPU generation with bf16; it is below 10, so no Blackwell code path is taken."""
    return 8
