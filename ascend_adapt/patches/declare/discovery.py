"""Patch discovery: collects the patches that a module or all modules of a package declare."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from ascend_adapt.patches.declare.spec import Patch


def patches_in(module: str | ModuleType) -> list[Patch]:
    """Return the patches that a module declares, and for a package, also the patches of all its submodules.

    A module declares the patches that are bound to its names, directly or in a list or tuple. The package comes first,
    then its modules by name, each in source order. A patch with several names counts once. Modules whose name begins
    with an underscore are not imported, because they contain code that a patch needs only at run time.
    """
    found = {id(patch): patch for home in _modules(module) for patch in _declared(home)}
    return list(found.values())


def _modules(module: str | ModuleType) -> Iterator[ModuleType]:
    home = importlib.import_module(module) if isinstance(module, str) else module
    yield home
    for info in pkgutil.iter_modules(getattr(home, "__path__", ()), f"{home.__name__}."):
        if not info.name.rpartition(".")[2].startswith("_"):
            yield from _modules(info.name)


def _declared(module: ModuleType) -> Iterator[Patch]:
    for value in vars(module).values():
        candidates = value if isinstance(value, (list, tuple)) else (value,)
        yield from (one for one in candidates if isinstance(one, Patch))
