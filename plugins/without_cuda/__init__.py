"""Runs CUDA code on a CPU or an NPU: unmodified scripts and packages, and code bases that plugins declare.

On an NPU, real or emulated, torch_npu's ``transfer_to_npu`` is imported. On a CPU, a tensor sent to "cuda" stays in
host memory. The results of ``torch.cuda`` depend on the calling module: torch, DeepSpeed and other packages that
support the device still see that CUDA is not available.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_adapt import Call, Patch, Symptom, hookimpl, patches_in, wrap

from . import programs
from .code_base import CudaCodeBase

if TYPE_CHECKING:
    from ascend_adapt import Host

UNTIL = "the code base selects its device by torch.accelerator"
SYMPTOM = Symptom(reason="torch.cuda is used in every file of the code base")


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of every module here."""
    return patches_in(__name__)


@hookimpl
def adapt_programs(device: str, cuda_code: str) -> programs.Programs | None:
    """Map "cuda" to the device of this host for CUDA code."""
    return None if cuda_code == "off" else programs.begin(device, cuda_code)


def without_cuda(
    target: str, *, host: Host | str, roots: tuple[str, ...] | None = (), any_script: bool = False
) -> list[Patch]:
    """Return the patches that make ``torch.cuda`` work for a code base on a CPU and on an NPU.

    ``target`` is a function of the code base that runs before any other code uses a device. Names that the code base
    has already imported from torch (``from torch.cuda import current_device``) are rebound. ``roots`` are the top-level
    modules of the code base: by default the module of ``target``; None means every module in its folder. ``__main__``
    belongs to the code base if the script is in the same folder, or, with ``any_script``, in any folder.
    """
    module = target.partition(":")[0]
    own = (module.partition(".")[0],) if roots == () else roots
    adopted: list[CudaCodeBase] = []

    def disown() -> None:
        for code_base in adopted:
            programs.disown(code_base)

    @wrap(
        target,
        host=host,
        devices="cpu",
        why="it calls torch.cuda for every tensor, but this host has no CUDA",
        until=UNTIL,
        without="crash",
        undo=disown,
        symptom=SYMPTOM,
    )
    def cuda_on_cpu(call: Call) -> Any:
        """Map "cuda" to the CPU for the code base, before it uses a device."""
        adopted[:] = [CudaCodeBase.around(module, own, any_script)]
        programs.adopt("cpu", *adopted)
        return call.proceed()

    @wrap(
        target,
        host=host,
        devices="npu",
        why="it calls torch.cuda for every tensor, but this host has an NPU",
        until=UNTIL,
        without="crash",
        reversible=False,
        symptom=SYMPTOM,
    )
    def cuda_on_npu(call: Call) -> Any:
        """Make torch_npu map "cuda" to "npu", before the code base uses a device."""
        programs.adopt("npu", CudaCodeBase.around(module, own, any_script))
        return call.proceed()

    return [cuda_on_cpu, cuda_on_npu]
