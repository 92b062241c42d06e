"""Megatron-core says ``torch.cuda`` everywhere: what that is where there is no CUDA, and what was bound before."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Symptom, replace, wrap

from ..without_cuda import without_cuda
from .releases import HOST, TRAINING

# Megatron-core calls it while it is imported, before anything of it, or of the script, uses a device.
FIRST_CALLED = "megatron.core.utils:is_torch_min_version"
WITHOUT_CUDA = without_cuda(FIRST_CALLED, host=HOST, any_script=True)


# What is used while megatron.core is imported asks for no version: a checkout tells it only when that import ends.
@replace(
    "megatron.core.jit:jit_fuser",
    host=HOST,
    devices=("cpu", "npu"),
    why="it is torch.compile: on an NPU transfer_to_npu breaks torch_npu's inductor, on a CPU it compiles for minutes",
    until="torch.compile works on an NPU beside transfer_to_npu",
    without="crash",
    symptom=Symptom("jit_fuser = torch.compile", at="megatron.core.jit"),
)
def no_compilation(model: Any = None, **options: Any) -> Any:
    """Return the function itself; with options only, a decorator that does."""
    return model if model is not None else lambda function: function


@wrap(
    "megatron.training.initialize:_warmup_jit_function",
    host=TRAINING,
    devices=("cpu", "npu"),
    why="it runs what is not compiled here; on a CPU it draws from the generator that the weights are drawn from",
    until="torch.compile works on an NPU beside transfer_to_npu",
    without="slower",
    symptom=Symptom("torch.rand(args.hidden_size, dtype=dtype, device='cuda')"),
)
def no_warmup(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run nothing."""


@replace(
    "megatron.training.utils:get_device_arch_version",
    host=TRAINING,
    devices="npu",
    why="it asks for the generation of a GPU, for which torch_npu answers None",
    until="Megatron-LM asks for it on GPUs only",
    without="crash",
    symptom=Symptom("get_device_properties(torch.device('cuda:0')).major"),
)
def generation_of_the_device() -> int:
    """Return 8, that of the first GPU with bf16: below 10, as nothing here is a Blackwell's."""
    return 8
