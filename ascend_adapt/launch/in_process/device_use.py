"""Whether the ranks of a job for an NPU use it: a program that finds no CUDA may train on the host's CPU instead.

A process that allocated memory on an NPU leaves one file in the run directory. A rank that only imported torch leaves
another; so does a script under a command, where no process is known to be a rank.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from types import ModuleType

USED, UNUSED = "device-used", "device-unused"


def watch(run_dir: Path, *, is_rank: bool) -> None:
    """Leave the file at the end of this process, if it has imported torch."""
    from wrapt import register_post_import_hook

    pid, reported = os.getpid(), list[bool]()
    should_use = is_rank or _runs_a_script()  # at its end Python has deleted __main__.__file__

    def report() -> None:
        if os.getpid() == pid and not reported and run_dir.is_dir():
            reported.append(True)
            if _uses_an_npu():
                (run_dir / USED).touch()
            elif should_use:
                (run_dir / UNUSED).touch()

    # torch_npu releases its devices in an exit handler of its own; those registered later run earlier.
    for name in ("torch", "torch_npu"):
        register_post_import_hook(lambda _: atexit.register(report), name)


def is_unused(run_dir: Path) -> bool:
    """Return whether ranks have imported torch, and no process of the job has used an NPU."""
    return (run_dir / UNUSED).exists() and not (run_dir / USED).exists()


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
