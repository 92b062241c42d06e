"""Code bases that say ``torch.cuda`` everywhere, on machines without CUDA: two patches each, none for torch itself.

On an NPU, real or emulated, torch_npu's own ``transfer_to_npu`` is asked for. On a CPU the modules of the code base,
and only they, see a ``torch`` whose ``cuda`` is this machine's CPU, and a tensor sent to "cuda" stays where it is. What
torch, DeepSpeed and every other package see is the truth: there is no CUDA here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_adapt import Patch, Symptom, wrap

from . import on_cpu, on_npu
from .code_base import CodeBase

if TYPE_CHECKING:
    from ascend_adapt import Host

UNTIL = "the code base asks torch.accelerator for its device"
SYMPTOM = Symptom(reason="torch.cuda is in every file of the code base")


def without_cuda(
    target: str, *, host: Host | str, roots: tuple[str, ...] | None = (), any_script: bool = False
) -> list[Patch]:
    """Return the patches that let a code base say ``torch.cuda`` on a CPU and on an NPU.

    ``target`` is the function of the code base that is called before any other that uses a device; what the code base
    has taken from torch by then (``from torch.cuda import current_device``) follows. ``roots`` are its top-level
    modules; by default that of ``target``, and None means every one in the folder. A script in the same folder that
    is ``__main__`` belongs to it; with ``any_script`` one elsewhere does, too.
    """
    module = target.partition(":")[0]
    own = (module.partition(".")[0],) if roots == () else roots

    @wrap(
        target,
        host=host,
        devices="cpu",
        why="it calls torch.cuda for every tensor, and torch here has no CUDA",
        until=UNTIL,
        without="crash",
        reversible=False,
        symptom=SYMPTOM,
    )
    def cuda_on_cpu(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let "cuda" be the CPU for the code base, before it asks for a device."""
        on_cpu.redirect(CodeBase.around(module, own, any_script))
        return wrapped(*args, **kwargs)

    @wrap(
        target,
        host=host,
        devices="npu",
        why="it calls torch.cuda for every tensor, and torch here has an NPU",
        until=UNTIL,
        without="crash",
        reversible=False,
        symptom=SYMPTOM,
    )
    def cuda_on_npu(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let torch_npu turn "cuda" into "npu", before the code base asks for a device."""
        on_npu.transfer(CodeBase.around(module, own, any_script))
        return wrapped(*args, **kwargs)

    return [cuda_on_cpu, cuda_on_npu]
