"""Built-in and third-party implementations of one kind, found by the entry points of a group."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from importlib.metadata import EntryPoints
from typing import Any

from ascend_adapt.errors import SettingsError, type_and_message


def names(group: str, built_in: str) -> list[str]:
    """Return the names of the entry points that the installed distributions have in this group.

    ``built_in`` is a name that ascend_adapt itself has in the group.

    Raises:
        SettingsError: the installed metadata is from another version than this code.
    """
    known = sorted(_points(group).names)
    if built_in not in known:
        raise SettingsError(
            f"{built_in}: not among the entry points of {group}, so the installed metadata is from another version "
            "than this code — install ascend_adapt again"
        )
    return known


def load(group: str, name: str, built_in: str) -> Any:
    """Return the object to which an entry point refers. ``built_in`` is as in ``names``.

    Raises:
        SettingsError: no entry point has this name, the object cannot be imported, or an error as in ``names``.
    """
    return _loaded(group, name, built_in, tuple(sys.path))


@functools.cache  # the native trainer looks up its schedule twice per step
def _loaded(group: str, name: str, built_in: str, path: tuple[str, ...]) -> Any:
    known = names(group, built_in)
    if name not in known:
        raise SettingsError(f"{name}: expected one of {', '.join(known)} — choose one")
    (point, *_) = _installed(group, path).select(name=name)
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a third-party module may raise any exception
        owner = f" (of {point.dist.name})" if point.dist is not None else ""
        raise SettingsError(
            f"{name}{owner}: importing {point.value} raised {type_and_message(error)} — correct or uninstall it"
        ) from error


def _points(group: str) -> EntryPoints:
    return _installed(group, tuple(sys.path))


@functools.cache  # takes about 10 ms, because it reads the files of every distribution on sys.path
def _installed(group: str, path: tuple[str, ...]) -> EntryPoints:
    return importlib.metadata.entry_points(group=group)
