"""Checks of the emulated NPU: the C compiler, the torch_npu wheel, and the cache for both."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from ascend_adapt.diagnosis.findings.machine import Finding, Machine
from ascend_adapt.emulation import build, cache, wheel
from ascend_adapt.errors import EmulationError


def compiler(machine: Machine) -> Iterator[Finding]:
    """Check for a C compiler, because the emulated CANN is compiled on first use."""
    try:
        build.find_compiler(machine.environ)
    except EmulationError as error:
        yield _failed(error, "the emulated CANN cannot be built")


def torch_npu_wheel(machine: Machine) -> Iterator[Finding]:
    """Check for a torch_npu wheel for the installed torch, without downloading one."""
    torch = machine.versions.get("torch")
    if torch is None:
        return
    try:
        if wheel.is_at_hand(torch, machine.environ):
            return
    except EmulationError as error:
        yield _failed(error, "the real torch_npu runs on the emulated CANN")
        return
    yield Finding(
        f"no torch_npu for torch {torch} is in {cache.path(machine.environ)} yet",
        "the first job downloads it (about 45 MB), with pip",
        "nothing needs to be done; on an offline host, set ASCEND_ADAPT_TORCH_NPU_WHEEL to a wheel of torch_npu "
        f"{wheel.release(torch)} for "
        f"Python {sys.version_info.major}.{sys.version_info.minor}",
        False,
    )


def writable_cache(machine: Machine) -> Iterator[Finding]:
    """Check that the cache can be written."""
    folder = cache.path(machine.environ)
    if folder.exists():
        try:
            cache.folder(machine.environ)
        except EmulationError as error:
            yield _failed(error, "nothing can be built or downloaded")
            return
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        yield Finding(
            f"{there} cannot be written", "nothing can be built or downloaded", "set ASCEND_ADAPT_CACHE", True
        )


def _failed(error: EmulationError, why: str) -> Finding:
    what, _, do = str(error).partition(" — ")
    return Finding(what, why, do, True)


CHECKS = (compiler, torch_npu_wheel, writable_cache)
