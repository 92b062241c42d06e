"""Plain functions that stand for an original: same module, qualname and signature, so pickle and partial keep working.

wrapt.FunctionWrapper is not used here: pickle, copy.deepcopy and functools.partial of a patched function would raise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

from ascend_adapt.errors import PatchDrift
from ascend_adapt.patches.spec import Patch


def stand_in(patch: Patch, original: Any, in_class: bool) -> Any:
    """Return what ``patch`` (a wrap or replace) puts where the descriptor ``original`` stands.

    A classmethod, staticmethod or property stays one.

    Raises:
        PatchDrift: the original is not what the patch can stand for.
    """
    if isinstance(original, type):
        raise PatchDrift(f"{patch.target} is a class: classes are never replaced — patch its __init__ or a method")
    if patch.kind == "replace" and patch.function is None:
        return patch.value
    if isinstance(original, classmethod):
        return classmethod(_function(patch, original.__func__, bound_to="class"))
    if isinstance(original, staticmethod):
        return staticmethod(_function(patch, original.__func__, bound_to=""))
    if isinstance(original, property):
        if original.fget is None:
            raise PatchDrift(f"{patch.target} is a property without a getter")
        getter = _function(patch, original.fget, bound_to="instance")
        return property(getter, original.fset, original.fdel, original.__doc__)
    if not callable(original):
        raise PatchDrift(f"{patch.target} is a {type(original).__name__}, expected a function")
    return _function(patch, original, bound_to="instance" if in_class else "")


def underlying(descriptor: Any) -> Any:
    """Return the function that other modules hold after ``f = Class.method``: that of a staticmethod, else itself."""
    return descriptor.__func__ if isinstance(descriptor, staticmethod) else descriptor


def _function(patch: Patch, original: Callable[..., Any], bound_to: str) -> Callable[..., Any]:
    assert patch.function is not None
    if patch.kind == "replace":
        _check_signature(patch, original)
        return _replacing(original, patch.function)
    return _wrapping_method(original, patch.function) if bound_to else _wrapping(original, patch.function)


def _wrapping(original: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, None, args, kwargs)

    return call


def _wrapping_method(original: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return wrapper(MethodType(original, self), self, args, kwargs)

    return call


def _replacing(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    # A function of its own: one patch object may be applied, reverted and applied to a reloaded module.
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def _check_signature(patch: Patch, original: Callable[..., Any]) -> None:
    assert patch.function is not None
    try:
        theirs = inspect.signature(original)
    except (TypeError, ValueError):
        return  # a builtin without a text signature
    refused = refused_call(theirs, inspect.signature(patch.function))
    if refused:
        raise PatchDrift(f"{patch.target}{theirs}: the replacement does not accept {refused}")


def refused_call(theirs: inspect.Signature, ours: inspect.Signature) -> str:
    """Return which call that ``theirs`` accepts ``ours`` does not, or ``""``."""
    by_position, by_name = [], []
    for parameter in theirs.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            by_position.append(parameter)
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            by_name.append(parameter)
    kinds = {parameter.kind for parameter in theirs.parameters.values()}
    keyword_only = [parameter for parameter in by_name if parameter.kind is parameter.KEYWORD_ONLY]
    required = [parameter for parameter in by_position if parameter.default is parameter.empty]
    needed_names = {parameter.name: None for parameter in keyword_only if parameter.default is parameter.empty}
    extra = (None,) * 64 if inspect.Parameter.VAR_POSITIONAL in kinds else ()
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("every argument by position", (None,) * len(by_position) + extra, needed_names),
        ("only the required arguments", (None,) * len(required), needed_names),
    ]
    for parameter in by_name:
        before = [p for p in required if p.name != parameter.name]
        named = {p.name: None for p in before if p.kind is p.POSITIONAL_OR_KEYWORD}
        positional = (None,) * sum(p.kind is p.POSITIONAL_ONLY for p in before)
        calls.append((f"{parameter.name}=", positional, {**named, **needed_names, parameter.name: None}))
    if inspect.Parameter.VAR_KEYWORD in kinds:
        calls.append(("further keywords", (None,) * len(required), {**needed_names, "a_keyword_of_no_one": None}))
    for text, args, kwargs in calls:
        try:
            ours.bind(*args, **kwargs)
        except TypeError:
            return text
    return ""
