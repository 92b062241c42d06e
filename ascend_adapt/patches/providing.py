"""The provide kind: modules that exist only because a patch makes them, found last and only by their host."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ascend_adapt import probe
from ascend_adapt.patches.host import Host
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
        is_package = any(name.startswith(f"{fullname}.") for name in self.provided)
        origin = f"provided by {provided.registered}"
        return importlib.machinery.ModuleSpec(fullname, _Loader(provided), origin=origin, is_package=is_package)


class _Loader(importlib.abc.Loader):
    def __init__(self, provided: Provided) -> None:
        self.provided = provided

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        self.provided.fill(module)


def _asked_by(host: Host) -> bool:
    """Whether the import comes from code of ``host``, and not from another library's availability check."""
    frame: Any = sys._getframe(1)
    while frame is not None and _is_import_machinery(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    if frame is None:
        return False
    name, file = frame.f_globals.get("__name__", ""), frame.f_globals.get("__file__")
    if name == "__main__":
        return bool(file) and not host.owns(Path(file).resolve().parent)
    folder = probe.root_folder(name.partition(".")[0])
    return folder is not None and not host.owns(folder)


def _is_import_machinery(name: str) -> bool:
    return name.partition(".")[0] in ("importlib", "_frozen_importlib", "wrapt", "ascend_adapt")
