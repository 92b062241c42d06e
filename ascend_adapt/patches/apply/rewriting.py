"""Rewrites: the same function object gets a new ``__code__``, so aliases and function tables need no rebinding."""

from __future__ import annotations
import __future__

import functools
import inspect
import linecache
import operator
from types import CodeType, FunctionType
from typing import Any

from ascend_adapt.errors import PatchDrift
from ascend_adapt.patches.apply import replacement
from ascend_adapt.patches.declare import syntax
from ascend_adapt.patches.declare.spec import Patch
from ascend_adapt.patches.judge.preconditions import rewrite_definition

_FUTURES = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


def rewritten_code(patch: Patch, descriptor: Any) -> tuple[FunctionType, CodeType]:
    """Return the function behind ``descriptor`` and its new code object.

    Raises:
        PatchDrift: the source differs from the declaration, or the new code needs other closure variables.
        NotNeeded: ``old`` does not occur and ``new`` occurs once.
    """
    function = function_behind(patch, descriptor)
    found = definition(patch, function)
    rewrite_definition(patch, found)
    new = _compiled(found, function)
    if new is None or new.co_freevars != function.__code__.co_freevars:
        had = ", ".join(function.__code__.co_freevars) or "none"
        needs = ", ".join(new.co_freevars) or "none" if new else "unknown"
        raise PatchDrift(
            f"{patch.target} has the closure variables {had}, but the rewritten code needs {needs} — use replace()"
        )
    return function, new


def _compiled(found: syntax.Found, function: FunctionType) -> CodeType | None:
    code = function.__code__
    flags = code.co_flags & _FUTURES
    module = compile(syntax.alone(found), code.co_filename, "exec", flags=flags, dont_inherit=True)
    return syntax.code_of(module, _path(function))


def _shape(code: CodeType) -> tuple[Any, ...]:
    """Return the properties that two compilations of one source share. Instructions also depend on the module."""
    constants = [_shape(one) if isinstance(one, CodeType) else one for one in code.co_consts]
    return code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_argcount, constants


def function_behind(patch: Patch, descriptor: Any) -> FunctionType:
    """Return the function defined under the target's name, behind decorators and wraps of this package.

    Raises:
        PatchDrift: there is no such function.
    """
    candidate = descriptor.fget if isinstance(descriptor, property) else replacement.underlying(descriptor)
    candidate = getattr(candidate, "__func__", candidate)
    name = patch.target.source_path[-1]
    candidates, seen = [candidate], set()
    while candidates:
        candidate = candidates.pop(0)
        seen.add(id(candidate))
        inner = [getattr(candidate, "__wrapped__", None)]
        if isinstance(candidate, FunctionType):
            if candidate.__code__.co_name == name and not replacement.is_ours(candidate):
                return candidate
            # A decorator without functools.wraps keeps the function in a closure cell.
            inner += inspect.getclosurevars(candidate).nonlocals.values()
        candidates += [one for one in inner if callable(one) and id(one) not in seen]
    raise PatchDrift(
        f"{patch.target} is a {type(descriptor).__name__} without a Python function of that name behind it"
    )


def _path(function: FunctionType) -> tuple[str, ...]:
    return tuple(step for step in function.__qualname__.split(".") if step != "<locals>")


def definition(patch: Patch, function: FunctionType) -> syntax.Found:
    """Return the definition of a function in its source, checked against the code that runs.

    Raises:
        PatchDrift: the source cannot be read, or has changed since the import.
    """
    filename = function.__code__.co_filename
    linecache.checkcache(filename)
    lines = linecache.getlines(filename, function.__globals__)
    if not lines:
        raise PatchDrift(f"{patch.target}: its source {filename} cannot be read")
    tree = syntax.parse("".join(lines), filename)
    bound = syntax.find(tree, _path(function), function.__code__.co_firstlineno)
    found = [one for one in bound if isinstance(one.node, syntax.Definition)]
    if len(found) != 1:
        raise PatchDrift(
            f"{patch.target}: {filename} line {function.__code__.co_firstlineno} does not define it — "
            "the file changed after it was imported, or the function was made by a decorator"
        )
    as_read = _compiled(found[0], function)
    if as_read is None or _shape(as_read) != _shape(function.__code__):
        raise PatchDrift(
            f"{patch.target}: {filename} does not compile to the code that runs — "
            "the file changed after it was imported"
        )
    return found[0]
