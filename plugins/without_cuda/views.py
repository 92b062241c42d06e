"""Attributes of a torch module that differ by caller: CUDA code, code that supports the device, or torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from .callers import Callers

_ABSENT: Any = object()


class View:
    """Gives a module different attributes for each kind of caller; undo() restores the module's class.

    ``by_kind`` maps CUDA, AWARE or TORCH to the attributes that such callers see. A name that is set on the module, as
    by a test's mock, is visible to all callers until the original is set again.
    """

    def __init__(self, module: ModuleType, callers: Callers, by_kind: Mapping[str, Mapping[str, Any]]) -> None:
        self._module, self._class = module, module.__class__
        answers = {
            name: _Answer(
                name,
                callers,
                vars(module).get(name, _ABSENT),
                {kind: names[name] for kind, names in by_kind.items() if name in names},
            )
            for name in set().union(*by_kind.values())
        }
        module.__class__ = type(self._class.__name__, (self._class,), answers)

    def undo(self) -> None:
        """Show every caller the unmodified module."""
        self._module.__class__ = self._class


class _Answer:
    """Descriptor of one attribute."""

    def __init__(self, name: str, callers: Callers, original: Any, by_kind: Mapping[str, Any]) -> None:
        self._name, self._callers, self._original, self._by_kind = name, callers, original, by_kind

    def __get__(self, module: ModuleType | None, owner: type) -> Any:
        if module is None:
            return self
        real = vars(module).get(self._name, _ABSENT)
        if real is self._original:
            own = self._by_kind.get(self._callers.kind(sys._getframe(1).f_globals), _ABSENT)
            real = real if own is _ABSENT else own
        if real is _ABSENT:
            raise AttributeError(f"module {module.__name__!r} has no attribute {self._name!r}")
        return real

    def __set__(self, module: ModuleType, value: Any) -> None:
        vars(module)[self._name] = value

    def __delete__(self, module: ModuleType) -> None:
        if self._name not in vars(module):
            raise AttributeError(self._name)
        del vars(module)[self._name]
