"""Copies that others took with ``from module import function``: found by identity, rebound on apply and on revert."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from types import CellType, FrameType, ModuleType
from typing import Any

Swaps = dict[int, tuple[Any, Any]]
"""``id(old) -> (old, new)``; old is held so that its id stays its own."""


def chain(swaps: Swaps, later: Swaps) -> None:
    """Add ``later`` swaps to ``swaps``, whose new objects may have been swapped again."""
    for key, (old, new) in swaps.items():
        swaps[key] = (old, swapped(new, later))
    swaps.update(later)


def swapped(value: Any, swaps: Swaps) -> Any:
    """Return what has taken the place of ``value``, or ``value`` itself."""
    return swaps[id(value)][1] if id(value) in swaps else value


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

    In ``homes``, the modules of the targets, more follows: the names in their own classes, and function tables, dicts
    and lists one level down in the module and those classes. Namespaces are read with ``vars()``, so lazy modules stay
    lazy.
    """
    count = sum(_rebind_mapping(vars(module), swaps) for module in modules)
    return count + sum(_rebind_home(home, swaps) for home in {id(home): home for home in homes}.values())


def _rebind_home(home: ModuleType, swaps: Swaps) -> int:
    classes = [v for v in list(vars(home).values()) if isinstance(v, type) and v.__module__ == home.__name__]
    count = 0
    for cls in classes:
        hits = _hits(vars(cls).items(), swaps)
        for name, new in hits:
            setattr(cls, name, new)
        count += len(hits)
    tables = [table for namespace in (home, *classes) for table in list(vars(namespace).values())]
    for table in tables:
        if type(table) is list:
            count += _rebind_list(table, swaps)
        elif type(table) is dict and table is not vars(home):
            count += _rebind_mapping(table, swaps)
    return count


def _rebind_list(table: list[Any], swaps: Swaps) -> int:
    hits = _hits(enumerate(table), swaps)
    for index, new in hits:
        table[index] = new
    return len(hits)


def _rebind_mapping(namespace: dict[Any, Any], swaps: Swaps) -> int:
    hits = _hits(namespace.items(), swaps)
    for key, new in hits:
        namespace[key] = new
    return len(hits)


def _hits(items: Iterable[tuple[Any, Any]], swaps: Swaps) -> list[tuple[Any, Any]]:
    try:
        return [(key, swaps[id(value)][1]) for key, value in items if id(value) in swaps]
    except RuntimeError:  # another thread changed its size
        return _hits(list(items), swaps)


def out_of_reach(swaps: Swaps, ours: list[Any]) -> dict[int, list[str]]:
    """Return, by the id of each original, what still holds it and could not be rebound, as ``a closure cell``.

    ``ours`` are the containers of this package that hold it on purpose. Walks every object that the garbage collector
    knows, once: for targets that were imported before enable() only.
    """
    wanted = tuple(old for old, _ in swaps.values())
    known = {id(ours), id(wanted), *map(id, ours), *map(id, swaps.values())}
    told: dict[int, list[str]] = {}
    for holder in gc.get_referrers(*wanted):
        if id(holder) in known or isinstance(holder, (FrameType, ModuleType)):
            continue
        for held in gc.get_referents(holder):
            if id(held) in swaps:
                told.setdefault(id(held), []).append(_describe(holder))
    return told


def _describe(holder: Any) -> str:
    if isinstance(holder, CellType):
        return "a closure cell"
    if isinstance(holder, (dict, list, tuple, set)):
        return f"a {type(holder).__name__}"
    return f"a {type(holder).__module__}.{type(holder).__qualname__}"
