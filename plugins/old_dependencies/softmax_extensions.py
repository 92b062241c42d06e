"""The CUDA extensions for softmax, on any device, for each Megatron with its own numbers."""

from __future__ import annotations

from types import ModuleType

from ascend_adapt import Patch, provide

from ..code_bases import BIGSCIENCE, GPT_NEOX, MEGATRON_DEEPSPEED, MEGATRON_LM

# As ascend_adapt.kernels.megatron_extensions has them, which imports torch.
MODULES = ("scaled_masked_softmax_cuda", "scaled_upper_triang_masked_softmax_cuda", "scaled_softmax_cuda")


def _provided(module_name: str, host: str) -> Patch:
    def fill(module: ModuleType) -> None:
        from ascend_adapt.kernels.megatron_extensions import fill_module

        fill_module(module, line=host)

    return provide(
        module_name,
        name=f"{module_name.removesuffix('_cuda')}_{host.replace('-', '_')}",
        host=host,
        why="the softmax of attention scores is a CUDA extension that is compiled with nvcc",
        until="the code base has a softmax of its own for every device",
        without="crash",
    )(fill)


PROVIDED = tuple(
    _provided(module, host) for host in (GPT_NEOX, MEGATRON_LM, MEGATRON_DEEPSPEED, BIGSCIENCE) for module in MODULES
)
