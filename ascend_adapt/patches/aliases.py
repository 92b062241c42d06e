"""Copies that others took with ``from module import function``: found by identity, rebound on apply and on revert."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping
from types import CellType, FrameType, ModuleType
from typing import Any

Swaps = Mapping[int, tuple[Any, Any]]
"""``id(old) -> (old, new)``; old is held so that its id stays its own."""


def modules_after(name: str) -> list[ModuleType]:
    """Return the loaded modules that entered sys.modules after ``name`` did.

    When a target has just been imported, only these can have copied from it.
    """
    modules = list(sys.modules.items())
    names = [key for key, _ in modules]
    start = names.index(name) if name in names else 0
    return [module for _, module in modules[start:] if isinstance(module, ModuleType)]


def all_modules() -> list[ModuleType]:
    """Return every loaded module."""
    return [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]


def rebind(swaps: Swaps, modules: Iterable[ModuleType], homes: Iterable[ModuleType] = ()) -> int:
    """Replace every module-level name that is one of ``swaps``, and return how many were.

    In ``homes``, the modules of the targets, function tables follow too: dicts and lists one level down, at module
    level and in the module's own classes. Namespaces are read with ``vars()``, so lazy modules stay lazy.
    """
    count = 0
    for module in modules:
        count += _rebind_mapping(vars(module), swaps)
    for home in homes:
        for table in _function_tables(home):
            count += _rebind_mapping(table, swaps) if isinstance(table, dict) else _rebind_list(table, swaps)
    return count


def _rebind_mapping(namespace: dict[Any, Any], swaps: Swaps) -> int:
    try:
        hits = [key for key, value in namespace.items() if id(value) in swaps]
    except RuntimeError:  # another thread changed its size
        hits = [key for key, value in namespace.copy().items() if id(value) in swaps]
    for key in hits:
        namespace[key] = swaps[id(namespace[key])][1]
    return len(hits)


def _rebind_list(table: list[Any], swaps: Swaps) -> int:
    hits = [index for index, value in enumerate(table) if id(value) in swaps]
    for index in hits:
        table[index] = swaps[id(table[index])][1]
    return len(hits)


def _function_tables(home: ModuleType) -> list[dict[Any, Any] | list[Any]]:
    namespaces: list[Mapping[str, Any]] = [vars(home)]
    namespaces += [vars(v) for v in vars(home).values() if isinstance(v, type) and v.__module__ == home.__name__]
    return [v for namespace in namespaces for v in list(namespace.values()) if type(v) in (dict, list)]


def out_of_reach(originals: Iterable[Any], ours: Iterable[Any]) -> dict[int, list[str]]:
    """Return, by the id of each original, what still holds it and could not be rebound, as ``a closure cell``.

    ``ours`` are the containers of this package that hold it on purpose. Walks every object that the garbage collector
    knows, once: for targets that were imported before enable() only.
    """
    wanted = {id(original): original for original in originals}
    known = {id(container) for container in ours} | {id(wanted)}
    told: dict[int, list[str]] = {}
    for holder in gc.get_referrers(*wanted.values()):
        if id(holder) in known or isinstance(holder, (FrameType, ModuleType)):
            continue
        for held in gc.get_referents(holder):
            if id(held) in wanted:
                told.setdefault(id(held), []).append(_describe(holder))
    return told


def _describe(holder: Any) -> str:
    if isinstance(holder, CellType):
        return "a closure cell"
    if isinstance(holder, (dict, list, tuple, set)):
        return f"a {type(holder).__name__}"
    return f"a {type(holder).__module__}.{type(holder).__qualname__}"
