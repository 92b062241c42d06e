"""CUDA code on an NPU: torch_npu's ``transfer_to_npu``, corrected for CUDA code and hidden from other code.

``transfer_to_npu`` changes torch for the entire process. Here, code that supports NPUs, such as accelerate, still sees
that CUDA is not available.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from .callers import AWARE, CUDA, SELECTING, TORCH, Callers
from .code_base import Names
from .profiling import MARKS, with_bool_signature
from .views import View

_PLACES = ("cuda", "cuda.random", "cuda.memory", "cuda.nvtx", "cuda.profiler", "distributed", "amp", "cuda.amp")
_TRANSFER = "torch_npu.contrib.transfer_to_npu"


class OnNpu:
    """Changes made in this process, which cannot be undone."""

    reversible = False

    def __init__(self, callers: Callers) -> None:
        import torch

        # Since torch 2.13, torch.distributed reads the compute capability of every tensor's device, which is None on
        # torch_npu unless this is set. 8.0 means "not Hopper", so no Hopper code path is taken.
        os.environ.setdefault("TORCH_NPU_DEVICE_CAPABILITY", "8.0")
        is_asked_for = _TRANSFER in sys.modules
        if not is_asked_for:
            # The first forward-mode derivative imports it, and it cannot be scripted after the transfer.
            import torch._decomp.decompositions_for_jvp  # noqa: F401 the import has the effect
        before = {place: dict(vars(attrgetter(place)(torch))) for place in _PLACES}
        before[""] = {name: value for name, value in vars(torch).items() if name in _PLACES}
        hidden = _Hidden()
        sys.meta_path.insert(0, hidden)
        try:
            with warnings.catch_warnings(record=True):
                # The banner of transfer_to_npu; its code also makes every later warning appear only once.
                from torch_npu.contrib import transfer_to_npu as _  # noqa: F401 the import has the effect
        finally:
            sys.meta_path.remove(hidden)
        from . import _sparse_products
        from ._torch_on_npu import torch_on_npu

        _sparse_products.install()
        # torch_npu cannot pack padded batches into nested tensors, as nn.TransformerEncoder does in evaluation.
        torch.backends.mha.set_fastpath_enabled(False)
        _disable_profiler_marks(torch)
        torch.load = _load_of_gpus(torch.load)
        # DataParallel imported it before the transfer replaced it, and would reject parameters on "npu:0".
        data_parallel = sys.modules["torch.nn.parallel.data_parallel"]
        data_parallel._get_available_device_type = torch._utils._get_available_device_type  # type: ignore[attr-defined]
        self._changed = [
            (old, new)
            for place, olds in before.items()
            for name, old in olds.items()
            if callable(old) or issubclass(type(old), ModuleType)
            if (new := vars(attrgetter(place)(torch) if place else torch).get(name)) is not None and new is not old
        ]
        # A program that imports transfer_to_npu itself expects torch.cuda to be the NPU for all code.
        honest = {} if is_asked_for else before
        for module, corrected in torch_on_npu(callers):
            place = module.__name__.removeprefix("torch").removeprefix(".")
            differences, eager = _differences(module, honest.get(place, {})), _eager(corrected)
            View(module, callers, {CUDA: corrected, AWARE: {**differences, **eager}, TORCH: eager})

    def rebind(self, modules: Iterable[ModuleType]) -> None:
        """Rebind names that loaded CUDA code has already imported from torch."""
        modules = list(modules)
        names = Names([*_unscripted(modules), *self._changed])
        for module in modules:
            names.rebind(module)

    def release(self, modules: Iterable[ModuleType]) -> None:
        """Do nothing: torch_npu cannot undo the transfer."""

    def undo(self, modules: Iterable[ModuleType]) -> None:
        """Do nothing, because torch_npu cannot undo the transfer."""


class _Hidden(importlib.abc.MetaPathFinder):
    """Import finder that keeps transfer_to_npu from importing libraries that the program has not imported.

    transfer_to_npu would wrap a dozen of their functions to hide CUDA from them, but they do not see CUDA anyway.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Raise ModuleNotFoundError for the libraries that transfer_to_npu wraps."""
        if fullname.partition(".")[0] in ("accelerate", "peft", "transformers", "trl"):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def _eager(corrected: dict[str, Any]) -> dict[str, Any]:
    """Return the eager torch.compile, also for code that supports NPUs, if torch_npu's compiler lacks Triton."""
    has_compiler = importlib.util.find_spec("triton") is not None
    return {name: value for name, value in corrected.items() if name == "compile" and not has_compiler}


def _differences(module: ModuleType, before: dict[str, Any]) -> dict[str, Any]:
    now, same = vars(module), SELECTING if module.__name__ == "torch.cuda" else ()
    return {name: value for name, value in before.items() if now.get(name) is not value and name not in same}


def _disable_profiler_marks(torch: ModuleType) -> None:
    """Make annotations for NVIDIA's profilers (NVTX) no-ops; after transfer_to_npu, they still raise an error."""
    for path, mark in MARKS.items():
        place, _, name = path.rpartition(".")
        setattr(attrgetter(place)(torch.cuda) if place else torch.cuda, name, mark)
    torch.cuda.memory._record_memory_history = with_bool_signature(torch.cuda.memory._record_memory_history)


def _load_of_gpus(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return a torch.load to replace the transfer's, which changes "cuda" to "npu" in all strings among its arguments.

    File names must stay unchanged, and so must the keys of ``map_location``: a file from a GPU contains "cuda:3".
    """
    from torch.serialization import default_restore_location

    @functools.wraps(load)
    def call(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        places = {} if map_location is None else map_location

        def restored(storage: Any, saved_on: str) -> Any:
            place = str(places.get(saved_on, places.get(saved_on.replace("npu", "cuda"), saved_on)))
            return default_restore_location(storage, place.replace("cuda", "npu"))

        where = restored if isinstance(places, dict) else places
        return load(Path(f) if isinstance(f, str) else f, where, *args, **kwargs)

    return call


def _unscripted(modules: Iterable[ModuleType]) -> Iterator[tuple[Any, Any]]:
    """Yield each scripted function with its original, because torch's fuser raises an error on NPUs.

    For the same reason, ``transfer_to_npu`` makes torch.jit.script a no-op from this point on.
    """
    import torch

    for module in modules:
        for value in vars(module).values():
            if isinstance(value, torch.jit.ScriptFunction) and hasattr(value, "_torchdynamo_inline"):
                yield value, value._torchdynamo_inline
