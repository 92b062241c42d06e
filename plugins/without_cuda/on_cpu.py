"""CUDA code on a CPU: the modules of the code base see their own ``torch``, and tensors stay in host memory."""

from __future__ import annotations

import sys
from types import ModuleType

from .code_base import CudaCodeBase, LateModules, Names

_redirected: set[CudaCodeBase] = set()


def redirect(code_base: CudaCodeBase) -> None:
    """Let the modules of ``code_base``, loaded now or later, see a torch whose "cuda" is the CPU.

    It applies to the whole process; a second call has no effect.
    """
    if code_base in _redirected:
        return
    from .cuda_means_cpu import CudaMeansCpu
    from .torch_on_cpu import torch_on_cpu

    if not _redirected:
        CudaMeansCpu().__enter__()
    _redirected.add(code_base)
    names = Names(torch_on_cpu())

    def see_the_proxy(module: ModuleType) -> None:
        names.rebind(module)

    for module in code_base.modules():
        see_the_proxy(module)
    sys.meta_path.insert(0, LateModules(code_base, see_the_proxy))
