"""Provided modules: created by a patch, visible to a code base, and found after or instead of real modules."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from ascend_adapt import probe
from ascend_adapt.patches.apply.imports import at_end_of_import
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.spec import Patch, Registered
from ascend_adapt.patches.judge.installation import is_complete


@dataclass(frozen=True)
class Provided:
    """A provided module: its patch, the code bases that see it, and the function that fills it."""

    registered: Registered
    hosts: tuple[CodeBase, ...]
    fill: Callable[[ModuleType], None]


class ProvidingFinder:
    """Finder of provided modules: at the end of sys.meta_path, after real modules, and at its front for ``instead``."""

    def __init__(self) -> None:
        self.provided: dict[str, list[Provided]] = {}
        self._at = (_End(self, instead=True), _End(self, instead=False))

    def offer(self, name: str, provided: Provided) -> None:
        """Make the module ``name`` importable. Of several offers to the same code, the first is used."""
        self.provided.setdefault(name, []).append(provided)
        front, back = self._at
        if back not in sys.meta_path:
            sys.meta_path.append(back)
        if provided.registered.patch.instead and front not in sys.meta_path:
            sys.meta_path.insert(0, front)

    def offers(self, registered: Registered) -> bool:
        """Return whether the module of the patch is offered."""
        return any(one.registered is registered for one in self.provided.get(registered.patch.target.module, ()))

    def withdraw(self, registered: Registered) -> None:
        """Stop providing the module of the patch."""
        name = registered.patch.target.module
        left = [one for one in self.provided.pop(name, []) if one.registered is not registered]
        if left:
            self.provided[name] = left
        module = sys.modules.get(name)
        loader = getattr(getattr(module, "__spec__", None), "loader", None)
        if isinstance(loader, _Loader) and loader.provided.registered is registered:
            del sys.modules[name]
            above, _, child = name.rpartition(".")
            parent = sys.modules.get(above)
            if parent is not None and vars(parent).get(child) is module:
                delattr(parent, child)
        if not self.provided:
            sys.meta_path[:] = [one for one in sys.meta_path if one not in self._at]

    def spec_for(self, fullname: str, *, instead: bool) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a provided module, or None if none is provided to the importing code.

        Raises:
            ModuleNotFoundError: the module is imported and belongs to a provided package, which lacks it.
        """
        package = getattr(sys.modules.get(fullname.rpartition(".")[0]), "__spec__", None)
        if fullname not in self.provided and not instead and _is_provided(package) and _is_import():
            raise ModuleNotFoundError(f"No module named {fullname!r} ({package.origin})", name=fullname)
        offers = [one for one in self.provided.get(fullname, ()) if one.registered.patch.instead is instead]
        # A module provided to the importing code base is preferred to one provided to all code.
        offers.sort(key=lambda one: not one.hosts)
        provided = next((one for one in offers if not one.hosts or _asked_by(one.hosts)), None)
        if provided is None or not _is_lent(provided.registered.patch):
            return None
        seen_by = provided.registered.patch.seen_by
        if seen_by is not None and not seen_by(_asking()):
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in self.provided)
        origin = f"provided by {provided.registered}"
        return importlib.machinery.ModuleSpec(fullname, _Loader(provided), origin=origin, is_package=is_package)


@dataclass(frozen=True, eq=False)
class _End:
    """One end of sys.meta_path: the front for ``instead`` modules, the back for the others."""

    finder: ProvidingFinder
    instead: bool

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a provided module, or None."""
        return self.finder.spec_for(fullname, instead=self.instead)


class _Loader(importlib.abc.Loader):
    def __init__(self, provided: Provided) -> None:
        self.provided = provided

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        self.provided.fill(module)


def _is_provided(spec: importlib.machinery.ModuleSpec | None) -> TypeGuard[importlib.machinery.ModuleSpec]:
    return isinstance(getattr(spec, "loader", None), _Loader)


def _asked_by(hosts: tuple[CodeBase, ...]) -> bool:
    """Return whether the importing code belongs to one of ``hosts``, unlike a library that checks for the module."""
    asking = _asking()
    name, file = asking.get("__name__", ""), asking.get("__file__")
    if name == "__main__":
        folders = _folders_around(Path(file).resolve()) if file else []
    else:
        folder = probe.root_folder(name)
        folders = [] if folder is None else [folder]
    return any(not host.owns(folder) for folder in folders for host in hosts)


def _folders_around(script: Path) -> list[Path]:
    """Return the parent folders of a script, up to site-packages, because code bases have tools in subfolders."""
    folders = list(script.parents)
    libraries = ("site-packages", "dist-packages")
    return folders[: next((depth for depth, folder in enumerate(folders) if folder.name in libraries), len(folders))]


def _is_lent(patch: Patch) -> bool:
    """Return whether the importing code may see the module. The ``importers`` see it only during their own import."""
    if not patch.importers:
        return True
    importer = sys.modules.get(_asking().get("__name__", ""))
    if importer is None or importer.__name__ not in patch.importers or is_complete(importer):
        return False
    at_end_of_import(importer, functools.partial(_forget, patch.target.module), also_if_failed=True)
    return True


def _forget(name: str) -> None:
    if _is_provided(getattr(sys.modules.get(name), "__spec__", None)):
        del sys.modules[name]


def _asking() -> dict[str, Any]:
    """Return the globals of the importing code."""
    frame: Any = sys._getframe(1)
    while frame is not None and _is_import_machinery(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return {} if frame is None else frame.f_globals


def _is_import() -> bool:
    """Return whether the module is imported. ``importlib.util.find_spec`` must return None for a missing one."""
    frame: Any = sys._getframe(1)
    while frame is not None and _is_import_machinery(frame.f_globals.get("__name__", "")):
        if frame.f_code.co_name == "_find_and_load":
            return True
        frame = frame.f_back
    return False


def _is_import_machinery(name: str) -> bool:
    return name.partition(".")[0] in ("importlib", "_frozen_importlib", "wrapt", "ascend_adapt")
