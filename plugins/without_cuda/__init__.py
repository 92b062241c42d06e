"""Code bases that use ``torch.cuda`` everywhere, without CUDA: two patches each, none for torch itself.

On an NPU, real or emulated, torch_npu's own ``transfer_to_npu`` is imported. On a CPU only the modules of the code base
see a ``torch`` whose ``cuda`` is the CPU, and a tensor sent to "cuda" stays in host memory. torch, DeepSpeed and every
other package still see that there is no CUDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_adapt import Patch, Symptom, wrap

from . import on_cpu, on_npu
from .code_base import CudaCodeBase

if TYPE_CHECKING:
    from ascend_adapt import Host

UNTIL = "the code base uses torch.accelerator for its device"
SYMPTOM = Symptom(reason="torch.cuda is in every file of the code base")


def without_cuda(
    target: str, *, host: Host | str, roots: tuple[str, ...] | None = (), any_script: bool = False
) -> list[Patch]:
    """Return the patches that make ``torch.cuda`` work for a code base on a CPU and on an NPU.

    ``target`` is the function of the code base that is called before any other uses a device. Names that the code base
    imported from torch before (``from torch.cuda import current_device``) are rebound. ``roots`` are its top-level
    modules: by default that of ``target``; None means every one in its folder. ``__main__`` belongs to it if the script
    is in the same folder, or anywhere with ``any_script``.
    """
    module = target.partition(":")[0]
    own = (module.partition(".")[0],) if roots == () else roots

    @wrap(
        target,
        host=host,
        devices="cpu",
        why="it calls torch.cuda for every tensor, and this host has no CUDA",
        until=UNTIL,
        without="crash",
        reversible=False,
        symptom=SYMPTOM,
    )
    def cuda_on_cpu(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make "cuda" mean the CPU for the code base, before it uses a device."""
        on_cpu.redirect(CudaCodeBase.around(module, own, any_script))
        return wrapped(*args, **kwargs)

    @wrap(
        target,
        host=host,
        devices="npu",
        why="it calls torch.cuda for every tensor, and this host has an NPU",
        until=UNTIL,
        without="crash",
        reversible=False,
        symptom=SYMPTOM,
    )
    def cuda_on_npu(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let torch_npu turn "cuda" into "npu", before the code base uses a device."""
        on_npu.transfer(CudaCodeBase.around(module, own, any_script))
        return wrapped(*args, **kwargs)

    return [cuda_on_cpu, cuda_on_npu]
