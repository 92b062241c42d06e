"""Calls when a module has been imported, every time it is; wrapt's post-import hooks do the work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from ascend_adapt.patches.installation import is_complete


class ImportWatch:
    """Calls ``on_import(module)`` after each import of a watched module.

    wrapt's hooks fire once and know no second import, and a module whose import is running when the watch begins fires
    at once, half made. A finder of our own, which finds nothing, fills both gaps: it renews the hook of a module that
    left sys.modules, and calls ``on_any_import()`` while ``waiting`` is set.
    """

    def __init__(self, on_import: Callable[[ModuleType], None], on_any_import: Callable[[], None]) -> None:
        self.on_import = on_import
        self.on_any_import = on_any_import
        self.waiting = False
        self.active = False
        self._watched: set[str] = set()
        self._seen: set[str] = set()
        self._executed: set[str] = set()

    def watch(self, names: Iterable[str]) -> None:
        """Begin to watch modules; the ones already imported are watched for their next import only."""
        self.active = True
        for name in names:
            if name not in self._watched:
                self._watched.add(name)
                if name in sys.modules:
                    self._seen.add(name)
                else:
                    self._hook(name)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Call nobody any more; wrapt's hooks cannot be withdrawn and stay, silent."""
        self.active = self.waiting = False
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> None:
        """Find nothing; see the class."""
        if self.waiting:
            self.on_any_import()
        if fullname in self._seen and fullname not in sys.modules:
            self._seen.discard(fullname)
            self._executed.discard(fullname)
            self._hook(fullname)

    def is_complete(self, module: ModuleType) -> bool:
        """Return whether all of the module's code has run; wrapt calls a moment before importlib says so."""
        return module.__name__ in self._executed or is_complete(module)

    def _hook(self, name: str) -> None:
        import wrapt

        wrapt.register_post_import_hook(self._imported, name)

    def _imported(self, module: ModuleType) -> None:
        self._seen.add(module.__name__)
        self._executed.add(module.__name__)
        if self.active:
            self.on_import(module)
