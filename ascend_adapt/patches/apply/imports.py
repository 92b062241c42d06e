"""Import watch: a callback after every import of a module, based on wrapt's post-import hooks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from ascend_adapt.patches.judge.installation import is_complete

_waiting: dict[str, list[ImportWatch]] = {}
"""Watches by module name. All watches of a module share one hook, because wrapt's hooks cannot be removed."""


class ImportWatch:
    """Calls ``on_import(name)`` after each import of a watched module.

    wrapt's hooks miss a second import, an import that is already running, and namespace packages. Therefore a finder
    that never finds anything renews the hook of a module that was removed from sys.modules, and reports a namespace
    package when one of its modules is searched for. The end of a running import is read from the module's spec.
    """

    def __init__(self, on_import: Callable[[str], None]) -> None:
        self.on_import = on_import
        self.active = False
        self._watched: set[str] = set()
        self._seen: set[str] = set()
        self._executed: set[str] = set()
        self._code_bases: set[str] = set()
        self._begun: set[str] = set()

    def watch(self, names: Iterable[str], code_bases: Iterable[str] = ()) -> None:
        """Watch modules. A module that is already imported is watched for its next import only.

        ``code_bases`` are top-level packages. ``on_import`` is also called for such a package as soon as one of its
        modules imports another module, and ``has_begun`` can be asked about it.
        """
        self.active = True
        for root in code_bases:
            if root not in self._code_bases:
                self._code_bases.add(root)
                if any(_has_code(name) for name in list(sys.modules) if name.partition(".")[0] == root):
                    self._begun.add(root)
        for name in names:
            if name in self._watched:
                continue
            self._watched.add(name)
            module = sys.modules.get(name)
            if module is None:
                self._hook(name)
                continue
            self._seen.add(name)
            if not is_complete(module):
                at_end_of_import(module, functools.partial(self._imported, name))
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Stop all callbacks."""
        self.active = False
        for watches in _waiting.values():
            watches[:] = [watch for watch in watches if watch is not self]
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> None:
        """Return None, so that other finders are asked; the class docstring explains why this finder exists."""
        above, root = fullname.rpartition(".")[0], fullname.partition(".")[0]
        if root in self._code_bases and root not in self._begun and _has_code(above):
            self._begun.add(root)
            if self.active:
                self.on_import(root)
        if above in self._watched and above not in self._seen and _is_namespace(sys.modules.get(above)):
            self._imported(above)
        if fullname in self._seen and fullname not in sys.modules:
            self._seen.discard(fullname)
            self._executed.discard(fullname)
            self._hook(fullname)

    def has_begun(self, root: str) -> bool:
        """Return whether any code of a code base has run. A search for its modules does not count."""
        return root in self._begun

    def is_complete(self, name: str) -> bool:
        """Return whether all code of a loaded module has run; importlib marks it only after wrapt has called back."""
        return name in self._executed or is_complete(sys.modules[name])

    def _hook(self, name: str) -> None:
        import wrapt

        if name in _waiting:
            _waiting[name].append(self)
            return
        _waiting[name] = [self]
        # Read sys.modules, not the module that wrapt passes, because some modules replace themselves.
        wrapt.register_post_import_hook(lambda module: _imported(name), name)

    def _imported(self, name: str) -> None:
        self._seen.add(name)
        self._executed.add(name)
        if _has_code(name) and (root := name.partition(".")[0]) in self._code_bases:
            self._begun.add(root)
        if self.active:
            self.on_import(name)


def _imported(name: str) -> None:
    for watch in _waiting.pop(name, ()):
        watch._imported(name)


def _has_code(name: str) -> bool:
    """Return whether a module is loaded or being loaded, and is not a namespace package."""
    return sys.modules.get(name) is not None and not _is_namespace(sys.modules[name])


def _is_namespace(module: ModuleType | None) -> bool:
    """Return whether a loaded package is a namespace package, which has no code."""
    spec = getattr(module, "__spec__", None)
    return spec is not None and spec.submodule_search_locations is not None and not spec.has_location


def at_end_of_import(module: ModuleType, callback: Callable[[], None], *, also_if_failed: bool = False) -> None:
    """Call ``callback`` when importlib marks a module that is being imported as complete."""
    spec: Any = module.__spec__
    kind = type(spec)

    class EndingSpec(kind):  # type: ignore[misc, valid-type]
        @property
        def _initializing(self) -> bool:
            return bool(vars(self)["_initializing"])

        @_initializing.setter
        def _initializing(self, value: bool) -> None:
            self.__class__ = kind
            self._initializing = value
            if sys.modules.get(self.name) is None and not also_if_failed:
                return  # the import failed
            try:
                callback()
            except BaseException:
                sys.modules.pop(self.name, None)
                raise

    spec.__class__ = EndingSpec
    if not vars(spec)["_initializing"]:
        spec._initializing = False  # another thread has finished the import meanwhile
