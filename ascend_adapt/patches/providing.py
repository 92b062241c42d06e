"""The provide kind: modules that exist only because a patch makes them, found last and only by their host."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ascend_adapt import probe
from ascend_adapt.patches.host import Host
from ascend_adapt.patches.imports import at_end_of_import
from ascend_adapt.patches.installation import is_complete
from ascend_adapt.patches.spec import Registered


@dataclass(frozen=True)
class Provided:
    """One module to provide: the patch that provides it, its host, and what fills it."""

    registered: Registered
    host: Host | None
    fill: Callable[[ModuleType], None]


class ProvidingFinder:
    """Stands at the end of sys.meta_path, so that a real module always wins."""

    def __init__(self) -> None:
        self.provided: dict[str, Provided] = {}

    def offer(self, name: str, provided: Provided) -> None:
        """Make module ``name`` importable."""
        self.provided[name] = provided
        if self not in sys.meta_path:
            sys.meta_path.append(self)

    def withdraw(self, name: str) -> None:
        """Make module ``name`` what it was: missing."""
        self.provided.pop(name, None)
        module = sys.modules.get(name)
        if isinstance(getattr(getattr(module, "__spec__", None), "loader", None), _Loader):
            del sys.modules[name]
            above, _, child = name.rpartition(".")
            parent = sys.modules.get(above)
            if parent is not None and vars(parent).get(child) is module:
                delattr(parent, child)
        if not self.provided and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a provided module, or None if there is none for the code that asks."""
        provided = self.provided.get(fullname)
        if provided is None or (provided.host is not None and not _asked_by(provided.host)):
            return None
        if provided.registered.patch.importers and not self._lend(fullname, provided.registered.patch.importers):
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in self.provided)
        origin = f"provided by {provided.registered}"
        return importlib.machinery.ModuleSpec(fullname, _Loader(provided), origin=origin, is_package=is_package)

    def _lend(self, name: str, importers: Sequence[str]) -> bool:
        """Return whether one of ``importers``, while it is imported itself, asks; at its end the module goes again."""
        module = sys.modules.get(_asking().get("__name__", ""))
        if module is None or module.__name__ not in importers or is_complete(module):
            return False
        at_end_of_import(module, functools.partial(_forget, name), also_if_failed=True)
        return True


def _forget(name: str) -> None:
    loader = getattr(getattr(sys.modules.get(name), "__spec__", None), "loader", None)
    if isinstance(loader, _Loader):
        del sys.modules[name]


class _Loader(importlib.abc.Loader):
    def __init__(self, provided: Provided) -> None:
        self.provided = provided

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        self.provided.fill(module)


def _asked_by(host: Host) -> bool:
    """Whether the import comes from code of ``host``, and not from another library's availability check."""
    asking = _asking()
    name, file = asking.get("__name__", ""), asking.get("__file__")
    if name == "__main__":
        return bool(file) and not host.owns(Path(file).resolve().parent)
    folder = probe.root_folder(name.partition(".")[0])
    return folder is not None and not host.owns(folder)


def _asking() -> dict[str, Any]:
    """Return the globals of the code that imports."""
    frame: Any = sys._getframe(1)
    while frame is not None and _is_import_machinery(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return {} if frame is None else frame.f_globals


def _is_import_machinery(name: str) -> bool:
    return name.partition(".")[0] in ("importlib", "_frozen_importlib", "wrapt", "ascend_adapt")
