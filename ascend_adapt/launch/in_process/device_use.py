"""Whether the ranks of a job for an NPU use it: a program that finds no CUDA may train on the host's CPU instead.

A process that allocated memory on an NPU leaves one file in the run directory. A process that made a model
elsewhere leaves another. A rank that imported torch but made no model leaves a third, because it may only
have prepared data.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from types import ModuleType

USED, UNUSED, NO_MODEL = "device-used", "device-unused", "device-unused-without-a-model"


def watch(run_dir: Path, *, is_rank: bool) -> None:
    """Leave the file at the end of this process, if it has imported torch."""
    from wrapt import register_post_import_hook

    pid, reported, models = os.getpid(), list[bool](), list[bool]()
    is_script = _runs_a_script()  # at its end Python has deleted __main__.__file__

    def report() -> None:
        if os.getpid() == pid and not reported and run_dir.is_dir():
            reported.append(True)
            if _uses_an_npu():
                (run_dir / USED).touch()
            elif models and (is_rank or is_script):
                (run_dir / UNUSED).touch()
            elif is_rank:
                (run_dir / NO_MODEL).touch()

    # torch_npu releases its devices in an exit handler of its own; those registered later run earlier.
    for name in ("torch", "torch_npu"):
        register_post_import_hook(lambda _: atexit.register(report), name)
    register_post_import_hook(lambda module: _notice_models(module, models), "torch.nn.modules.module")


def is_unused(run_dir: Path, *, requested: bool) -> bool:
    """Return whether a model was made, and no process of the job has used an NPU.

    If the user ``requested`` the device, a rank without a model counts too.
    """
    unused = (UNUSED, NO_MODEL) if requested else (UNUSED,)
    return any((run_dir / name).exists() for name in unused) and not (run_dir / USED).exists()


def _notice_models(module: ModuleType, models: list[bool]) -> None:
    """Append to ``models`` when a module gets a parameter; before torch 2.0 every process counts."""
    register = getattr(module, "register_module_parameter_registration_hook", None)
    if register is None:
        models.append(True)
    else:
        register(lambda *_: None if models else models.append(True))


def _runs_a_script() -> bool:
    """Return whether this process runs a file of the user's, rather than an installed launcher such as torchrun."""
    file = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    return file.suffix == ".py" and not {"site-packages", "dist-packages"} & {*file.parts}


def _uses_an_npu() -> bool:
    torch_npu: ModuleType | None = sys.modules.get("torch_npu")
    npu = getattr(torch_npu, "npu", None)
    if npu is None or not npu.is_initialized():
        return False
    return any(npu.max_memory_allocated(index) for index in range(npu.device_count()))
