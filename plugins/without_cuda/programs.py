"""Detection of CUDA programs on other devices, before the first line that could use CUDA."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from _thread import get_ident
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .callers import CUDA, Callers, is_own, to_run
from .code_base import CudaCodeBase
from .gpu_assertions import GpuAssertions
from .import_finders import found_after

_MEANS = {"cpu": "the CPU", "npu": "the NPU"}
_PRINTED = "ASCEND_ADAPT_CUDA_CODE_PRINTED"
_current: Programs | None = None


class Programs:
    """CUDA code in this process; before its first module runs, torch is adapted: "cuda" is this host's device."""

    def __init__(self, device: str, policy: str) -> None:
        self.callers = Callers(device, policy)
        self._because, self._change, self._finder, self._undone = "", None, _Finder(self), False
        self._assertions = GpuAssertions(self.callers)

    _change: Any

    def watch(self) -> None:
        """Inspect the program as soon as torch is imported, and each module before it runs."""
        from wrapt import register_post_import_hook

        if self.callers.device == "cpu":
            self._assertions.install()
        # The hook runs before importlib marks torch as initialized, or immediately if torch is already initialized.
        register_post_import_hook(lambda _: self._look(), "torch")

    def adopt(self, code_base: CudaCodeBase) -> None:
        """Treat a code base that a plugin declares as CUDA code, regardless of the setting."""
        if code_base not in self.callers.code_bases:
            self.callers.add(code_base)
            self._begin("", "")
            self._change.rebind(self._cuda_modules())

    def disown(self, code_base: CudaCodeBase) -> None:
        """Undo ``adopt``: its modules are CUDA code only if the setting finds them to be."""
        if code_base not in self.callers.code_bases:
            return
        adapted = list(self._cuda_modules())
        if self.callers.policy == "off" and len(self.callers.code_bases) == 1:
            self.undo()
        self.callers.remove(code_base)
        if self._change is not None:
            self._change.release(one for one in adapted if self.callers.kind(vars(one)) != CUDA)

    def consider(self, spec: ModuleSpec) -> None:
        """Adapt torch if a module that is about to run is CUDA code."""
        if self.callers.says_cuda(spec.name, spec.origin or ""):
            self._begin(spec.name, spec.origin or "")

    def describe(self) -> str:
        """Describe the adaptation in one sentence, or return "" if there was none."""
        is_left = self._change is not None and not self._change.reversible
        if not self._because or (self._undone and not is_left):
            return ""
        device = _MEANS[self.callers.device]
        if self._undone:
            return f'{self._because} uses CUDA: "cuda" stays mapped to {device}; this cannot be undone'
        return (
            f'{self._because} uses CUDA: "cuda" is mapped to {device}, also in other code that does not support '
            "this device (disable with --cuda-code off or ASCEND_ADAPT_CUDA_CODE=off)"
        )

    def undo(self) -> None:
        """Restore torch, except on an NPU, where torch_npu's transfer remains."""
        global _current
        self._undone = True
        self._finder.remove()
        self._assertions.undo()
        os.environ.pop(_PRINTED, None)
        if self._change is not None:
            self._change.undo(self._cuda_modules())
        if self._change is None or self._change.reversible:
            _current = None

    def _look(self) -> None:
        if self._undone or self._change is not None:
            return
        for module in [sys.modules["__main__"], *sys.modules.values()]:
            names = vars(module) if isinstance(module, ModuleType) else {}  # getattr would call a lazy __getattr__.
            file, run_as = names.get("__file__") or "", getattr(names.get("__spec__"), "name", None)
            if names and self.callers.says_cuda(names.get("__name__", ""), file, run_as):
                self._begin(names.get("__name__", ""), file)
                return
        # A sitecustomize or a plugin may import torch before the script runs, which no import in the script reveals.
        _, script = to_run()
        if script and self.callers.says_cuda("__main__", script):
            self._begin("__main__", script)
            return
        sys.meta_path.insert(0, self._finder)

    def _begin(self, name: str, file: str) -> None:
        if self._change is None:
            self._finder.remove()
            if self.callers.device == "npu":
                from .on_npu import OnNpu as Change
            else:
                from .on_cpu import OnCpu as Change  # type: ignore[assignment]
            self._change = Change(self.callers)
            self._change.rebind(self._cuda_modules())
        self._because = self._because or (file if is_own(name, file) else f"the package {name.partition('.')[0]}")
        self._print_once()

    def _cuda_modules(self) -> Iterator[ModuleType]:
        """Yield the loaded modules that are CUDA code."""
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType) and self.callers.kind(vars(module)) == CUDA:
                yield module

    def _print_once(self) -> None:
        """Print the adaptation, only on rank 0 and not in its child processes."""
        if not self._because:
            return
        if os.environ.get("RANK", "0") == "0" and _PRINTED not in os.environ:
            print(f"ascend_adapt: {self.describe()}", file=sys.stderr)
        os.environ.setdefault(_PRINTED, "1")


class _Finder(importlib.abc.MetaPathFinder):
    """Import finder that passes each module's spec to the programs before the module runs."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._in_progress: set[tuple[int, str]] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders return for a module, after inspecting the module."""
        request = get_ident(), fullname
        if request in self._in_progress or self not in sys.meta_path:
            return None
        self._in_progress.add(request)
        try:
            spec = found_after(self, fullname, path, target)
        finally:
            self._in_progress.discard(request)
        if spec is not None and spec.origin and spec.has_location:
            self._programs.consider(spec)
        return spec

    def remove(self) -> None:
        """Remove this finder from sys.meta_path."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]


def _has_torch_npu() -> bool:
    # find_spec raises an error for a loaded module without a spec.
    return "torch_npu" in sys.modules or importlib.util.find_spec("torch_npu") is not None


def begin(device: str, policy: str) -> Programs | None:
    """Return the programs of this process, or None if CUDA is the device or torch_npu is missing for an NPU."""
    global _current
    if device == "cuda" or (device == "npu" and not _has_torch_npu()):
        return None
    if _current is None:
        _current = Programs(device, policy)
        _current.watch()
    _current._undone = False
    return _current


def adopt(device: str, code_base: CudaCodeBase) -> None:
    """Treat a code base as CUDA code, even if the plugin that adapts scripts is disabled."""
    programs = begin(device, "off")
    assert programs is not None  # The patches that call this are for other devices.
    programs.adopt(code_base)


def disown(code_base: CudaCodeBase) -> None:
    """Undo ``adopt``."""
    if _current is not None:
        _current.disown(code_base)


def current() -> Programs | None:
    """Return the programs of this process, if any code may be CUDA code."""
    return _current


def is_mapped() -> bool:
    """Return whether "cuda" is mapped in this process, where torch.compile then runs functions eagerly."""
    return _current is not None and _current._change is not None


def is_cuda_code(names: dict[str, Any]) -> bool:
    """Return whether code with the globals ``names`` is CUDA code."""
    return _current is not None and _current.callers.kind(names) == CUDA
