"""Aliases made by ``from module import function``: they are found by identity, and rebound on apply and on revert."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from types import CellType, FrameType, ModuleType
from typing import Any

Swaps = dict[int, tuple[Any, Any]]
"""``id(old) -> (old, new)``. The reference to the old object keeps its id valid."""


def chain(swaps: Swaps, later: Swaps) -> None:
    """Add ``later`` to ``swaps``, and follow swaps whose new object ``later`` swaps again."""
    for key, (old, new) in swaps.items():
        swaps[key] = (old, swapped(new, later))
    swaps.update(later)


def swapped(value: Any, swaps: Swaps) -> Any:
    """Return the replacement of ``value``, or ``value`` itself."""
    return swaps[id(value)][1] if id(value) in swaps else value


def modules_after(name: str) -> list[ModuleType]:
    """Return the loaded modules that entered sys.modules after ``name`` did.

    After the import of a target, only these can contain aliases of it.
    """
    modules = list(sys.modules.copy().items())
    names = [key for key, _ in modules]
    start = names.index(name) if name in names else 0
    return [module for _, module in modules[start:] if isinstance(module, ModuleType)]


def all_modules() -> list[ModuleType]:
    """Return every loaded module."""
    return [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]


def rebind(swaps: Swaps, modules: Iterable[ModuleType], homes: Iterable[ModuleType] = ()) -> int:
    """Rebind every module-level name that refers to an old object of ``swaps``, and return the number of names.

    In ``homes``, the modules of the targets, this also rebinds names in classes, and entries of dicts and lists
    (function tables) at the top level of a module or class. Namespaces are read with ``vars()``, so lazy modules stay
    lazy.
    """
    count = sum(_rebind_mapping(vars(module), swaps) for module in modules)
    return count + sum(_rebind_home(home, swaps) for home in {id(home): home for home in homes}.values())


def _rebind_home(home: ModuleType, swaps: Swaps) -> int:
    # isinstance would read __class__, at which torch.distributed.reduce_op prints a warning.
    classes = [v for v in list(vars(home).values()) if issubclass(type(v), type) and v.__module__ == home.__name__]
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
    except RuntimeError:  # another thread changed the size of the mapping
        return _hits(list(items), swaps)


def out_of_reach(swaps: Swaps, ours: list[Any]) -> dict[int, list[str]]:
    """Return descriptions of references that cannot be rebound, such as ``a closure cell``, by id of the original.

    ``ours`` are containers in which this package keeps originals. This scans all objects of the garbage collector, so
    call it only for targets that were imported before enable().
    """
    wanted = tuple(old for old, _ in swaps.values())
    known = {id(ours), id(wanted), *map(id, ours), *map(id, swaps.values())}
    found: dict[int, list[str]] = {}
    for holder in gc.get_referrers(*wanted):
        if id(holder) in known or isinstance(holder, (FrameType, ModuleType)):
            continue
        for held in gc.get_referents(holder):
            if id(held) in swaps:
                found.setdefault(id(held), []).append(_describe(holder))
    return found


def _describe(holder: Any) -> str:
    if isinstance(holder, CellType):
        return "a closure cell"
    if isinstance(holder, (dict, list, tuple, set)):
        return f"a {type(holder).__name__}"
    return f"a {type(holder).__module__}.{type(holder).__qualname__}"
