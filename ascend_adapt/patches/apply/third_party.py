"""Third-party patchers: finds their functions in place of upstream's, and the functions inside wrappers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

_DEPTH = 8


@dataclass(frozen=True)
class ThirdPartyPatcher:
    """A package that changes the code of other packages at run time.

    ``modules`` define the functions that it sets. ``leave_out`` instructs users how to avoid
    the change.
    """

    name: str
    modules: tuple[str, ...]
    leave_out: str


@dataclass(frozen=True)
class ThirdPartyChange:
    """A third-party patcher's function in place of upstream's."""

    patcher: ThirdPartyPatcher
    function: str

    def __str__(self) -> str:
        return f"{self.patcher.name}'s {self.function}"


def find(value: Any, others: Sequence[ThirdPartyPatcher], root: str) -> ThirdPartyChange | None:
    """Return which of the patchers ``others`` defined ``value`` or a function that it wraps, or None.

    Functions of upstream's top-level package ``root`` are not searched.
    """
    for function in _wrapped(value, root):
        homes = _homes(function)
        for other in others:
            if any(f"{home}.".startswith(f"{module}.") for home in homes for module in other.modules):
                return ThirdPartyChange(other, describe(function))
    return None


def describe(value: Any) -> str:
    """Return the module and name of a function or class."""
    function = _function(value)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{next(iter(_homes(function)), '?')}.{name}"


def calls(value: Any, function: Any) -> bool:
    """Return whether ``value`` wraps ``function``."""
    return any(one is function for one in _wrapped(value))


def _wrapped(value: Any, but_not_in: str = "") -> Iterator[Any]:
    """Yield the function behind ``value`` and the functions that it wraps, outermost first.

    Functions of the top-level package ``but_not_in`` are not searched.
    """
    waiting, seen = [(_function(value), 0)], set()
    while waiting:
        function, depth = waiting.pop(0)
        if id(function) in seen or depth > _DEPTH:
            continue
        seen.add(id(function))
        yield function
        if but_not_in and _code_home(function).partition(".")[0] == but_not_in:
            continue
        inner = [getattr(function, "__wrapped__", None)]
        if isinstance(function, FunctionType):
            inner += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        waiting += [(_function(one), depth + 1) for one in inner if isinstance(_function(one), FunctionType)]


def _function(value: Any) -> Any:
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, (classmethod, staticmethod, MethodType)) else value


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _homes(function: Any) -> list[str]:
    """Return the module of a function's code, and its ``__module__``, which wrappers often copy."""
    homes = (_code_home(function), getattr(function, "__module__", None))
    return [home for home in homes if home and isinstance(home, str)]


def _code_home(function: Any) -> str:
    return str(getattr(function, "__globals__", {}).get("__name__", ""))
