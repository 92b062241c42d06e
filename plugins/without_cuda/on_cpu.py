"""CUDA code on a CPU: a ``torch`` of its own for the modules of the code base, and tensors that stay where they are."""

from __future__ import annotations

import sys
from types import ModuleType

from .code_base import CodeBase, LateModules, Names

_redirected: set[CodeBase] = set()


def redirect(code_base: CodeBase) -> None:
    """Let the modules of ``code_base``, loaded or to come, see a torch whose "cuda" is the CPU.

    It holds for the whole process; a second call changes nothing.
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
