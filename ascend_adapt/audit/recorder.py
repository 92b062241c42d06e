"""Records what a package changes in other packages, inside the audited process.

This module needs only Python 3.8 and its standard library, because the audited command may use another interpreter.
Assignments to modules are seen as they happen. Assignments to classes cannot be intercepted; they are found at the end,
by comparing each class with a copy of its attributes from its import.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import FrameType, FunctionType, ModuleType
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_ABSENT = object()
# Modules that assign attributes on behalf of other modules.
_HELPERS = ("wrapt", "unittest", "functools", "contextlib", "pluggy", "importlib", "_pytest", "typing")
_IGNORED = ("__doc__", "__dict__", "__weakref__", "__abstractmethods__", "_abc_impl", "__annotations__", "__module__")
_PYTHONS_OWN = ("distutils", "_distutils_hack", "site")
_STDLIB = frozenset(getattr(sys, "stdlib_module_names", ()) or sys.builtin_module_names)


class Recorder:
    """Records the changes that packages make to each other in this process."""

    def __init__(self) -> None:
        # The list keeps the originals alive, so that their ids are not reused.
        self._changes: list[tuple[dict[str, Any], Any]] = []
        self._classes: dict[type, dict[str, Any]] = {}
        self._watched: dict[str, type] = {}

    def watch(self, module: ModuleType) -> None:
        """Record assignments to a module and to the classes that it defines, from now on."""
        name = _names(module).get("__name__", "")
        if not name or name in self._watched or _root(name) in _STDLIB or _is_ours(name):
            return
        for value in list(_names(module).values()):
            if issubclass(type(value), type) and value.__module__ == name:
                self._classes.setdefault(value, dict(vars(value)))
        base, recorder = type(module), self

        def assign(self: ModuleType, attribute: str, value: Any) -> None:
            old = self.__dict__.get(attribute, _ABSENT)
            base.__setattr__(self, attribute, value)
            if self.__dict__.get(attribute) is not old:
                recorder.add(name, attribute, old, value, sys._getframe(1))

        try:
            # A plain assignment would call the __setattr__ that some modules define.
            ModuleType.__setattr__(module, "__class__", type(base.__name__, (base,), {"__setattr__": assign}))
        except TypeError:
            return  # the module object has another type; its classes are still compared
        self._watched[name] = base

    def add(self, module: str, attribute: str, old: Any, new: Any, frame: FrameType | None) -> None:
        """Record one assignment, unless a package makes it to itself or Python's import system does."""
        is_submodule = isinstance(new, ModuleType) and new.__name__ == f"{module}.{attribute}"
        while frame is not None and _root(frame.f_globals.get("__name__") or "") in _HELPERS:
            frame = frame.f_back
        if frame is None or is_submodule:
            return
        writer = frame.f_globals.get("__name__") or ""
        if _root(writer) in (_root(module), *_PYTHONS_OWN) or attribute in ("__spec__", "__loader__", "__path__"):
            return
        self._record(f"{module}.{attribute}", old, new, writer, f"{frame.f_code.co_filename}:{frame.f_lineno}")

    def _record(self, target: str, old: Any, new: Any, writer: str, place: str) -> None:
        kind = "added" if old is _ABSENT else "set to None" if new is None else "changed"
        if kind == "changed" and isinstance(old, (bool, int, float, str, type(None))):
            kind = "setting"
        change = {"target": target, "kind": kind, "old": _described(old), "new": _described(new)}
        self._changes.append(({**change, "by": writer, "at": place}, old))

    def finish(self) -> dict[str, Any]:
        """Compare classes, look for aliases of originals, and return the recorded changes."""
        for module, base in self._watched.items():
            if module in sys.modules and type(sys.modules[module]).__base__ is base:
                ModuleType.__setattr__(sys.modules[module], "__class__", base)
        for cls, before in list(self._classes.items()):
            self._compare(cls, before)
        changes = [change for change, _ in self._changes]
        return {"changes": changes, "stale": self._stale(), "fake": _fake_modules()}

    def _compare(self, cls: type, before: dict[str, Any]) -> None:
        now = dict(vars(cls))
        for attribute in sorted({*before, *now}):
            old, new = before.get(attribute, _ABSENT), now.get(attribute)
            if old is new or attribute in _IGNORED or not (callable(_plain(new)) or callable(_plain(old))):
                continue
            # A value of None does not show which package assigned it.
            writer, place = ("unknown", "") if attribute in now and new is None else _origin(new)
            if writer and _root(writer) != _root(cls.__module__):
                self._record(f"{cls.__module__}.{cls.__qualname__}.{attribute}", old, new, writer, place)

    def _stale(self) -> list[dict[str, str]]:
        """Return names in other modules that still hold a replaced function or class."""
        originals: dict[int, tuple[str, str]] = {}
        for change, old in self._changes:
            if change["kind"] in ("changed", "set to None") and (isinstance(old, type) or callable(old)):
                originals.setdefault(id(old), (change["target"], change["by"]))
        now = {change["target"] for change, _ in self._changes}
        found = []
        for name, module in sys.modules.copy().items():
            names = _names(module)
            if not str(names.get("__file__")).endswith(".py") or _is_ours(name):
                continue  # a compiled module refers to its own functions
            for attribute, value in list(names.items()):
                target, writer = originals.get(id(value), ("", ""))
                held = f"{name}.{attribute}"
                if target and held != target and held not in now and _root(name) != _root(writer):
                    found.append({"alias": held, "of": target})
        return found


def _names(module: Any) -> dict[str, Any]:
    """Return the attributes of a module without getattr, which could trigger lazy imports."""
    return object.__getattribute__(module, "__dict__") if issubclass(type(module), ModuleType) else {}


def _plain(value: Any) -> Any:
    return getattr(value, "__func__", getattr(value, "fget", value))


def _origin(value: Any) -> tuple[str, str]:
    """Return the module that defines a value's code, and its location."""
    value = _plain(value)
    while isinstance(value, FunctionType) and isinstance(inner := value.__dict__.get("__wrapped__"), FunctionType):
        if value.__code__.co_filename != inner.__code__.co_filename:
            break
        value = inner
    if isinstance(value, FunctionType):
        # functools.wraps copies the original's __module__, but the globals belong to the wrapper.
        return value.__globals__.get("__name__", ""), f"{value.__code__.co_filename}:{value.__code__.co_firstlineno}"
    return getattr(value, "__module__", None) or "", ""


def _described(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    plain = _plain(value)
    if isinstance(plain, (FunctionType, type)) or callable(plain):
        writer = _origin(plain)[0]
        return f"{writer}.{getattr(plain, '__qualname__', type(plain).__name__)}".lstrip(".")
    return f"module {value.__name__}" if isinstance(value, ModuleType) else f"{type(value).__name__} {value!r}"[:80]


def _fake_modules() -> list[str]:
    """Return the modules in sys.modules that have no loader. Patchers create such modules in place of missing ones."""
    found = []
    for name, module in sys.modules.copy().items():
        names = _names(module)
        spec = names.get("__spec__")
        if type(module) is not ModuleType or names.get("__file__") or _root(name) in _STDLIB:
            continue
        if spec is None or spec.loader is not None or spec.submodule_search_locations is not None:
            continue
        found.append(name)
    return found


def _root(module: str) -> str:
    return module.partition(".")[0]


def _is_ours(module: str) -> bool:
    return _root(module) in ("sitecustomize", "usercustomize", "_ascend_adapt_audit")


class _Finder:
    """Import finder that watches each module as soon as its import is complete."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._busy: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._busy or _root(name) in _STDLIB:
            return None
        self._busy.add(name)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, self._recorder)  # type: ignore[assignment]
                    return spec
        finally:
            self._busy.discard(name)
        return None


class _Loader:
    """Loader that executes a module, removes itself from it, and passes it to the recorder."""

    def __init__(self, loader: Any, recorder: Recorder) -> None:
        self._loader, self._recorder = loader, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._recorder.watch(sys.modules.get(module.__name__, module))


def begin(folder: str) -> None:
    """Start recording in this process; at its end, write the recorded changes into ``folder``."""
    recorder, pid = Recorder(), os.getpid()
    sys.meta_path.insert(0, _Finder(recorder))

    def write() -> None:
        if os.getpid() != pid:
            return  # a forked child; only its parent writes
        path = os.path.join(folder, f"{pid}.json")
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            json.dump(recorder.finish(), file)
        os.replace(f"{path}.part", path)

    atexit.register(write)
