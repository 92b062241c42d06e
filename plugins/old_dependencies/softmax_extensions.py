"""Replacements of CUDA extensions for softmax, on any device, with the arithmetic of each Megatron fork."""

from __future__ import annotations

from types import ModuleType

from ascend_adapt import Patch, provide

from ..code_bases import BIGSCIENCE, GPT_NEOX, MEGATRON_DEEPSPEED, MEGATRON_LM

# The same names as in ascend_adapt.kernels.megatron_extensions, which cannot be read here because it imports torch.
MODULES = ("scaled_masked_softmax_cuda", "scaled_upper_triang_masked_softmax_cuda", "scaled_softmax_cuda")


def _provided(module_name: str, host: str) -> Patch:
    def fill(module: ModuleType) -> None:
        from ascend_adapt.kernels.megatron_extensions import fill_module

        fill_module(module, host)

    return provide(
        module_name,
        name=f"{module_name.removesuffix('_cuda')}_{host.replace('-', '_')}",
        host=host,
        why="the softmax of attention scores is a CUDA extension that is compiled with nvcc",
        until="the code base has a softmax for every device",
        without="crash",
    )(fill)


PROVIDED = tuple(
    _provided(module, host) for host in (GPT_NEOX, MEGATRON_LM, MEGATRON_DEEPSPEED, BIGSCIENCE) for module in MODULES
)
