"""Modules of a code base written for CUDA, and the names in them that are bound to objects of torch."""

from __future__ import annotations

import importlib.abc
import sys
from _thread import get_ident
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class CudaCodeBase:
    """The top-level modules ``roots`` in ``folder`` (None: all modules in it), and a script there.

    ``any_script``: a script anywhere, for a library whose users write their own.
    """

    folder: Path
    roots: tuple[str, ...] | None
    any_script: bool = False

    @classmethod
    def around(cls, module: str, roots: tuple[str, ...] | None, any_script: bool = False) -> CudaCodeBase:
        """Return the code base that the loaded ``module`` belongs to."""
        file = Path(sys.modules[module].__file__ or "").resolve()
        depth = module.count(".") + (file.name == "__init__.py")
        return cls(file.parents[depth], roots, any_script)

    def owns(self, module: ModuleType) -> bool:
        """Return whether a loaded module belongs to the code base."""
        name, file = module.__name__, getattr(module, "__file__", None)
        root = name.partition(".")[0]
        top = module if root == name else sys.modules.get(root)
        if not file or top is None:
            return False
        if name == "__main__" and self.any_script:
            return True
        if name != "__main__" and self.roots is not None and root not in self.roots:
            return False
        places = getattr(top, "__path__", None) or [getattr(top, "__file__", None) or ""]
        return any(Path(place).resolve().parent == self.folder for place in places)

    def modules(self) -> list[ModuleType]:
        """Return the loaded modules of the code base."""
        return [one for one in list(sys.modules.values()) if isinstance(one, ModuleType) and self.owns(one)]


class Names:
    """Replacements of torch objects in a code base: pairs of an object and its replacement."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self._pairs: Mapping[int, tuple[Any, Any]] = {id(old): (old, new) for old, new in pairs}

    def rebind(self, module: ModuleType) -> None:
        """Rebind each global name of ``module`` that is bound to one of the objects to its replacement."""
        for name, value in list(vars(module).items()):
            if id(value) in self._pairs:
                setattr(module, name, self._pairs[id(value)][1])


class LateModules:
    """Calls ``on_import(module)`` after each later import of a module of the code base."""

    def __init__(self, code_base: CudaCodeBase, on_import: Callable[[ModuleType], None]) -> None:
        self.code_base, self.on_import = code_base, on_import
        self._in_progress: set[tuple[int, str]] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the other finders for a module of the code base; its loader calls ``on_import``."""
        request = get_ident(), fullname
        if request in self._in_progress or not self._may_own(fullname, path):
            return None
        self._in_progress.add(request)
        try:
            spec = self._found_by_others(fullname, path, target)
        finally:
            self._in_progress.discard(request)
        if spec is not None and spec.loader is not None and spec.origin:
            spec.loader = _NotifyingLoader(spec.loader, self)
        return spec

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """Return the spec from the finders after this one; those before it have already been tried."""
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :] if self in finders else finders:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            # A finder of another code base has already tried all after it; trying them again would double the work.
            if spec is not None or (isinstance(finder, LateModules) and finder._may_own(fullname, path)):
                return spec
        return None

    def _may_own(self, name: str, path: Sequence[str] | None) -> bool:
        roots = self.code_base.roots
        if roots is not None:
            return name.partition(".")[0] in roots
        return path is not None or self._is_in_the_folder(name)

    def _is_in_the_folder(self, name: str) -> bool:
        folder = self.code_base.folder
        return (folder / name).is_dir() or (folder / f"{name}.py").is_file()


class _NotifyingLoader(importlib.abc.Loader):
    def __init__(self, loader: Any, late: LateModules) -> None:
        self._loader, self._late = loader, late

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        # From here on importlib, inspect and pickle see Python's own loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if self._late.code_base.owns(module):
            self._late.on_import(module)
