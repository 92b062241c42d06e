"""Other packages that change the same code: whose function stands at a place, and whether it still calls another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

_DEPTH = 8


@dataclass(frozen=True)
class ThirdPartyPatcher:
    """A package that changes code of others at run time.

    ``modules`` are what the functions that it puts in place are defined in; ``leave_out`` tells a user what to leave
    out so that it does not.
    """

    name: str
    modules: tuple[str, ...]
    leave_out: str


@dataclass(frozen=True)
class ThirdPartyChange:
    """A function of another patcher where upstream's own would be."""

    patcher: ThirdPartyPatcher
    function: str

    def __str__(self) -> str:
        return f"{self.patcher.name}'s {self.function}"


def find(value: Any, others: Sequence[ThirdPartyPatcher], root: str) -> ThirdPartyChange | None:
    """Return which of ``others`` has put ``value``, or what ``value`` wraps, in its place; None if nobody has.

    What a function of upstream's own top-level package ``root`` holds is upstream's.
    """
    for function in _wrapped(value, root):
        homes = _homes(function)
        for other in others:
            if any(f"{home}.".startswith(f"{module}.") for home in homes for module in other.modules):
                return ThirdPartyChange(other, describe(function))
    return None


def describe(value: Any) -> str:
    """Return how a user finds a function or class: the module that its code is in, and its name."""
    function = _function(value)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{next(iter(_homes(function)), '?')}.{name}"


def calls(value: Any, function: Any) -> bool:
    """Return whether ``value`` is a wrapper that holds ``function``, which others put below their own."""
    return any(one is function for one in _wrapped(value))


def _wrapped(value: Any, but_not_in: str = "") -> Iterator[Any]:
    """Yield the function behind ``value`` and those that it holds as wrappers do, from the outermost in.

    Functions whose code is in the top-level package ``but_not_in`` are not looked into.
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
    """Return the modules that a function says it is from; a wrapper often says what it wraps, its code does not."""
    told = (_code_home(function), getattr(function, "__module__", None))
    return [home for home in told if home and isinstance(home, str)]


def _code_home(function: Any) -> str:
    return str(getattr(function, "__globals__", {}).get("__name__", ""))
