"""Stand-ins for an original: plain functions with the original's module, qualname and signature, which can be pickled.

wrapt.FunctionWrapper is not used, because pickle, copy.deepcopy and functools.partial of a patched function would
raise.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from ascend_adapt.errors import PatchDrift
from ascend_adapt.patches.declare.spec import Patch
from ascend_adapt.patches.declare.target import Place
from ascend_adapt.patches.judge.preconditions import refused_call


def stand_in(patch: Patch, original: Any, place: Place) -> Any:
    """Return the stand-in that ``patch`` (a wrap or replace) sets at ``place`` for the descriptor ``original``.

    Classmethods, staticmethods, properties, coroutine and generator functions keep their kind.

    Raises:
        PatchDrift: the original is not a function, method or property.
    """
    if isinstance(original, type):
        raise PatchDrift(f"{patch.target} is a class: classes are never replaced — patch its __init__ or a method")
    if patch.kind == "replace" and patch.function is None and not _is_function(patch.value, original):
        return patch.value
    if isinstance(original, classmethod):
        return classmethod(_function(patch, original.__func__, place, bound=True))
    if isinstance(original, staticmethod):
        return staticmethod(_function(patch, original.__func__, place, bound=False))
    if isinstance(original, property):
        if original.fget is None:
            raise PatchDrift(f"{patch.target} is a property without a getter")
        getter = _function(patch, original.fget, place, bound=True)
        return property(getter, original.fset, original.fdel, original.__doc__)
    if not callable(original):
        raise PatchDrift(f"{patch.target} is a {type(original).__name__}, expected a function")
    if isinstance(getattr(type(original), "__call__", None), FunctionType):  # noqa: B004
        name = type(original).__qualname__
        raise PatchDrift(f"{patch.target} is an object of class {name}, expected a function — patch {name}.__call__")
    if not isinstance(place.owner, type):
        return _function(patch, original, place, bound=False)
    if _binds(original):
        return _function(patch, original, place, bound=True)
    return staticmethod(_function(patch, original, place, bound=False))


def inherited(place: Place) -> Any:
    """Return a function that calls the method that ``place.owner`` inherits at the time of the call.

    Raises:
        PatchDrift: it is object's __new__, __init__ or __reduce__, whose behaviour depends on what the class defines.
    """
    owner, name, value = place.owner, place.name, place.value
    if name in ("__new__", "__init__", "__reduce__") and value is vars(object)[name]:
        raise PatchDrift(f"class {owner.__qualname__} and its bases define no {name}, and object's cannot be wrapped")

    def call(*args: Any, **kwargs: Any) -> Any:
        if not args:
            return value(**kwargs)  # without self, the original raises its usual error
        return getattr(super(owner, args[0]), name)(*args[1:], **kwargs)

    def call_static(*args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, owner), name)(*args, **kwargs)

    def get(self: Any) -> Any:
        return getattr(super(owner, self), name)

    if isinstance(value, classmethod):
        return classmethod(_as(value.__func__)(call))
    if isinstance(value, staticmethod):
        return staticmethod(_as(value.__func__)(call_static))
    if isinstance(value, property) and value.fget is not None:
        return property(functools.wraps(value.fget)(get), value.fset, value.fdel, value.__doc__)
    return _as(value)(call) if isinstance(value, FunctionType) else value


def underlying(descriptor: Any) -> Any:
    """Return the object that ``f = Class.method`` binds: the function of a staticmethod, else the descriptor."""
    return descriptor.__func__ if isinstance(descriptor, staticmethod) else descriptor


def is_ours(function: Any) -> bool:
    """Return whether ``function`` is a stand-in of this module."""
    return isinstance(function, FunctionType) and function.__globals__.get("__name__") == __name__


def is_borrowed(function: Any, place: Place) -> bool:
    """Return whether ``function`` is borrowed: defined in another class, or for a module in another package."""
    home, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(home, str) or not isinstance(qualname, str) or "<locals>" in qualname:
        return False
    if isinstance(place.owner, type):
        return (home, qualname.rpartition(".")[0]) != (place.owner.__module__, place.owner.__qualname__)
    return home.partition(".")[0] != str(place.owner.__name__).partition(".")[0]


def _binds(original: Any) -> bool:
    """Return whether Python passes the instance to this class attribute: never to builtins, to partials since 3.14."""
    # In Python 3.13, partial.__get__ only warns.
    is_unbound = isinstance(original, functools.partial) and sys.version_info < (3, 14)
    return hasattr(type(original), "__get__") and not is_unbound


def is_function_like(original: Any) -> bool:
    """Return whether ``original`` is callable or a descriptor."""
    return callable(original) or hasattr(original, "__get__")


def _is_function(value: Any, original: Any) -> bool:
    return isinstance(value, FunctionType) and is_function_like(original)


def _function(patch: Patch, original: Callable[..., Any], place: Place, bound: bool) -> Callable[..., Any]:
    function = patch.value if patch.function is None else patch.function
    if patch.kind == "replace":
        _check_signature(patch, original, function, bound)
        call = _replacing(original, function)
    elif bound:
        call = _wrapping_method(original, function)
    else:
        call = _wrapping(original, function)
    is_plain = isinstance(original, FunctionType)
    if not is_plain:
        _copy_attributes(original, call)
    call = _of_the_same_kind(original, call)
    if place.inherited or is_borrowed(original, place) or not is_plain:
        # If it had the original's name, pickle would find the original or nothing.
        owner = place.owner
        in_class = isinstance(owner, type)
        call.__module__ = owner.__module__ if in_class else owner.__name__
        call.__name__ = place.name
        call.__qualname__ = f"{owner.__qualname__}.{place.name}" if in_class else place.name
    return call


def _as(original: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a function the metadata and defaults of ``original``.

    The function must take only ``*args, **kwargs``. Python would fill named parameters from these defaults, and read
    out of bounds if there are more defaults than parameters.
    """

    def mark(call: Any) -> Any:
        call = functools.wraps(original)(call)
        if isinstance(original, FunctionType):
            call.__defaults__, call.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
        return call

    return mark


def _wrapping(original: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    @_as(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, None, args, kwargs)

    return call


def _wrapping_method(original: Any, wrapper: Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(original, FunctionType):
        bind = original.__get__

        @_as(original)
        def call_bound(*args: Any, **kwargs: Any) -> Any:
            if not args:
                return original(**kwargs)  # without self, the original raises its usual error
            return wrapper(bind(args[0]), args[0], args[1:], kwargs)

        return call_bound

    # torch.compile traces through partial into the original. In torch 2.11 the graph breaks at __get__, in 2.13 at
    # types.MethodType.
    @_as(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not args:
            return original(**kwargs)
        return wrapper(functools.partial(original, args[0]), args[0], args[1:], kwargs)

    return call


def _replacing(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    # Each application creates a new function, because a patch may be applied again, such as to a reloaded module.
    @_as(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def _copy_attributes(original: Any, call: Callable[..., Any]) -> None:
    """Copy the attributes that functools.wraps does not copy, such as cache_clear() of an lru_cache."""
    for name in dir(original):
        if not name.startswith("__") and not hasattr(call, name):
            setattr(call, name, getattr(original, name))


def _of_the_same_kind(original: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``call`` as a coroutine or generator function if the original is one, because callers may inspect it."""
    if inspect.iscoroutinefunction(original):

        @_as(call)
        async def run(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return run
    if inspect.isgeneratorfunction(original):

        @_as(call)
        def generate(*args: Any, **kwargs: Any) -> Any:
            return (yield from call(*args, **kwargs))

        return generate
    return call


def _check_signature(patch: Patch, original: Callable[..., Any], function: Callable[..., Any], bound: bool) -> None:
    try:
        theirs = inspect.signature(original)
    except (TypeError, ValueError):
        return  # a builtin without a signature
    refused = refused_call(theirs, inspect.signature(function), bound)
    if refused:
        raise PatchDrift(f"{patch.target}{theirs}: the replacement does not accept {refused}")
