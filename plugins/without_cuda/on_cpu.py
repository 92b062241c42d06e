"""CUDA code on a CPU: in its view of torch, "cuda" is the CPU, and its tensors stay in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from .callers import AWARE, CUDA, SELECTING, TORCH, Callers
from .code_base import Names
from .threads import Threads
from .views import View


class OnCpu:
    """Views of torch.cuda for this process, in which "cuda" means the CPU."""

    reversible = True

    def __init__(self, callers: Callers) -> None:
        from ._cuda_means_cpu import CUDA_MEANS_CPU
        from ._torch_on_cpu import torch_on_cpu

        seen = torch_on_cpu()
        pairs = [
            (vars(module)[name], value)
            for module, names in seen
            for name, value in names.items()
            if callable(vars(module).get(name))
        ]
        self._views = [View(module, callers, _by_kind(module, names)) for module, names in seen]
        self._names, self._originals = Names(pairs), Names([(new, old) for old, new in pairs])
        self._mode = CUDA_MEANS_CPU
        self._mode.enter()
        self._threads = Threads(self._mode)

    def rebind(self, modules: Iterable[ModuleType]) -> None:
        """Rebind names that loaded CUDA code has already imported from torch."""
        for module in modules:
            self._names.rebind(module)

    def release(self, modules: Iterable[ModuleType]) -> None:
        """Restore the names that ``rebind`` has rebound."""
        for module in modules:
            self._originals.rebind(module)

    def undo(self, modules: Iterable[ModuleType]) -> None:
        """Restore torch, and the names in ``modules``."""
        for view in self._views:
            view.undo()
        self.release(modules)
        self._threads.undo()
        self._mode.leave()


def _by_kind(module: ModuleType, names: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the attributes for CUDA code; ``compile`` is for all code, because guards on the caller would fail."""
    for_all = {name: value for name, value in names.items() if name == "compile"}
    selecting = {name: names[name] for name in SELECTING} if module.__name__ == "torch.cuda" else {}
    return {CUDA: names, AWARE: {**for_all, **selecting}, TORCH: for_all}
