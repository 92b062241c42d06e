"""Call: one call of a patched function, as a wrapper sees it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from ascend_adapt.errors import PatchDrift


class Call:
    """A call of a wrapped target: its arguments by upstream's names, and the original function.

    ``wrapped`` is the original, bound if it is a method. ``instance`` is the object or class of a method, else None.
    ``args`` and ``kwargs`` are the caller's arguments.
    """

    def __init__(self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.wrapped, self.instance, self.args, self.kwargs = wrapped, instance, args, kwargs

    def proceed(self) -> Any:
        """Call the original with the arguments of this call, and return its result."""
        return self.wrapped(*self.args, **self.kwargs)

    def __getitem__(self, name: str) -> Any:
        """Return the argument with this name, or the parameter's default if the caller did not pass it.

        Raises:
            PatchDrift: the original has no such parameter.
            TypeError: the original does not accept this call.
        """
        bound = self._bound(name)
        return bound.arguments[name] if name in bound.arguments else bound.signature.parameters[name].default

    def __setitem__(self, name: str, value: Any) -> None:
        """Set the value that is passed for an argument. Raises the errors of ``__getitem__``."""
        bound = self._bound(name)
        bound.arguments[name] = value
        self.args, self.kwargs = bound.args, bound.kwargs

    def _bound(self, name: str) -> inspect.BoundArguments:
        signature = inspect.signature(self.wrapped)
        if name not in signature.parameters:
            own = f"{getattr(self.wrapped, '__qualname__', 'the target')}({', '.join(signature.parameters)})"
            raise PatchDrift(
                f"{own}: has no parameter {name!r}, which its patch uses — the code base has changed; --disable the "
                "patch, or use a version of the code base that it supports"
            )
        return signature.bind(*self.args, **self.kwargs)


def with_four_arguments(wrapper: Any) -> Any:
    """Return a wrapper ``def f(call)`` as ``def f(wrapped, instance, args, kwargs)``, and other wrappers unchanged."""
    if not isinstance(wrapper, FunctionType) or wrapper.__code__.co_argcount != 1:
        return wrapper

    @functools.wraps(wrapper)
    def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return wrapper(Call(wrapped, instance, args, kwargs))

    del call.__wrapped__  # the wrapped callable's signature stays that of the wrapper
    return call
