"""Detects whether the ranks of an NPU job use the NPU: a program that finds no CUDA may train on the CPU instead.

At exit, a process leaves a file in the run directory. The file's name records that the process allocated memory on
an NPU, that it made a model elsewhere, or that it is a rank which imported torch without making a model. The last
kind of rank may only have prepared data.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from types import ModuleType

from ascend_adapt import probe

USED, UNUSED, NO_MODEL = "device-used", "device-unused", "device-unused-without-a-model"


def watch(run_dir: Path, *, is_rank: bool) -> None:
    """Arrange that this process leaves its file at exit, if it has imported torch."""
    from wrapt import register_post_import_hook

    pid, reported, models = os.getpid(), list[bool](), list[bool]()
    is_script = probe.runs_a_script()  # At exit Python has already deleted __main__.__file__.

    def report() -> None:
        if os.getpid() == pid and not reported and run_dir.is_dir():
            reported.append(True)
            if _uses_an_npu():
                (run_dir / USED).touch()
            elif models and (is_rank or is_script):
                (run_dir / UNUSED).touch()
            elif is_rank:
                (run_dir / NO_MODEL).touch()

    # torch_npu releases its devices in an exit handler. Handlers that are registered later run earlier.
    for name in ("torch", "torch_npu"):
        register_post_import_hook(lambda _: atexit.register(report), name)
    register_post_import_hook(lambda module: _notice_models(module, models), "torch.nn.modules.module")


def is_unused(run_dir: Path, *, requested: bool) -> bool:
    """Return whether the job made a model but none of its processes used an NPU.

    If the user ``requested`` the device, a rank that made no model counts too.
    """
    unused = (UNUSED, NO_MODEL) if requested else (UNUSED,)
    return any((run_dir / name).exists() for name in unused) and not (run_dir / USED).exists()


def _notice_models(module: ModuleType, models: list[bool]) -> None:
    """Append to ``models`` when a module registers a parameter; before torch 2.0, assume that there is a model."""
    register = getattr(module, "register_module_parameter_registration_hook", None)
    if register is None:
        models.append(True)
    else:
        register(lambda *_: None if models else models.append(True))


def _uses_an_npu() -> bool:
    torch_npu: ModuleType | None = sys.modules.get("torch_npu")
    npu = getattr(torch_npu, "npu", None)
    if npu is None or not npu.is_initialized():
        return False
    return any(npu.max_memory_allocated(index) for index in range(npu.device_count()))
