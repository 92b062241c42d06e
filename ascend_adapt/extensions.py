"""Built-in and third-party implementations of one kind, found by the entry points of a group."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from ascend_adapt.errors import SettingsError, one_line


def names(group: str) -> list[str]:
    """Return the names that the installed distributions give to the entry points of this group."""
    return sorted({point.name for point in importlib.metadata.entry_points(group=group)})


def load(group: str, name: str, built_in: str) -> Any:
    """Return what an entry point names.

    ``built_in``: a name that this package itself has in this group.

    Raises:
        SettingsError: no entry point has this name, or it cannot be imported.
    """
    known = names(group)
    if built_in not in known:
        raise SettingsError(
            f"{built_in}: is not among the entry points of {group}, so the installed metadata is of another version "
            "than this code — install ascend_adapt again"
        )
    if name not in known:
        raise SettingsError(f"{name}: expected one of {', '.join(known)} — choose one")
    (point, *_) = importlib.metadata.entry_points(group=group, name=name)
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a third party's module may raise anything
        owner = f" (of {point.dist.name})" if point.dist is not None else ""
        raise SettingsError(
            f"{name}{owner}: importing {point.value} raised {type(error).__name__}: {one_line(error)} — correct or "
            "uninstall it"
        ) from error
