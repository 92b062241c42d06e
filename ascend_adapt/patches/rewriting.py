"""The rewrite kind: another ``__code__`` for the same function object, so that aliases and function tables follow."""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
from types import CodeType, FunctionType
from typing import Any

from ascend_adapt.errors import PatchDrift, PatchSpecError
from ascend_adapt.patches import syntax
from ascend_adapt.patches.replacement import underlying
from ascend_adapt.patches.spec import NotNeeded, Patch

_FUTURES = 0
for _feature in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _feature).compiler_flag


def rewritten_code(patch: Patch, descriptor: Any) -> tuple[FunctionType, CodeType]:
    """Return the function behind ``descriptor`` and the code it is to run instead.

    Raises:
        PatchDrift: source or expression are not as declared, or the new code needs other closure variables.
        NotNeeded: ``old`` is nowhere and ``new`` is there once.
    """
    function = _function_behind(patch, descriptor)
    path = tuple(step for step in function.__qualname__.split(".") if step != "<locals>")
    found = _definition(patch, function, path)
    rewrite_definition(patch, found)
    code = compile(
        syntax.alone(found),
        function.__code__.co_filename,
        "exec",
        flags=function.__code__.co_flags & _FUTURES,
        dont_inherit=True,
    )
    new = syntax.code_of(code, path)
    if new is None or new.co_freevars != function.__code__.co_freevars:
        had = ", ".join(function.__code__.co_freevars) or "none"
        needs = ", ".join(new.co_freevars) or "none" if new else "unknown"
        raise PatchDrift(f"{patch.target} has the closure variables {had}, rewritten it needs {needs} — use replace()")
    return function, new


def rewrite_definition(patch: Patch, found: syntax.Found) -> None:
    """Rewrite a definition in its syntax tree.

    Raises:
        PatchDrift, NotNeeded: as in rewritten_code.
    """
    old = syntax.parse_fragment(patch.old, f"{patch} old=")
    new = syntax.parse_fragment(patch.new, f"{patch} new=")
    if isinstance(old, ast.expr) is not isinstance(new, ast.expr):
        raise PatchSpecError(f"{patch}: old= and new= must both be expressions or both be statements")
    if not syntax.occurrences(found.node, old) and len(syntax.occurrences(found.node, new)) == 1:
        raise NotNeeded(f"{patch.new!r} is there already")
    try:
        syntax.substitute(found, old, new)
    except PatchDrift as drift:
        raise PatchDrift(f"{patch.target}: {drift}") from None


def _function_behind(patch: Patch, descriptor: Any) -> FunctionType:
    """The function that was written under the target's name, also behind decorators."""
    candidate = descriptor.fget if isinstance(descriptor, property) else underlying(descriptor)
    candidate = getattr(candidate, "__func__", candidate)
    name = patch.target.path[-1]
    for _ in range(16):
        if isinstance(candidate, FunctionType) and candidate.__code__.co_name == name:
            return candidate
        inner = getattr(candidate, "__wrapped__", None)
        if inner is None and isinstance(candidate, FunctionType):
            # A decorator without functools.wraps keeps the function in a closure cell.
            held = inspect.getclosurevars(candidate).nonlocals.values()
            inner = next((one for one in held if isinstance(one, FunctionType) and one.__code__.co_name == name), None)
        if inner is None:
            break
        candidate = inner
    raise PatchDrift(
        f"{patch.target} is a {type(descriptor).__name__} without a Python function of that name behind it"
    )


def _definition(patch: Patch, function: FunctionType, path: tuple[str, ...]) -> syntax.Found:
    filename = function.__code__.co_filename
    lines = linecache.getlines(filename, function.__globals__)
    if not lines:
        raise PatchDrift(f"{patch.target}: its source {filename} cannot be read")
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError as error:
        raise PatchDrift(f"{patch.target}: its source {filename} does not parse: {error.msg}") from error
    found = [
        one
        for one in syntax.find(tree, path, function.__code__.co_firstlineno)
        if isinstance(one.node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    if len(found) != 1:
        raise PatchDrift(
            f"{patch.target}: {filename} line {function.__code__.co_firstlineno} does not define it — "
            "the file changed after it was imported, or the function was made by a decorator"
        )
    return found[0]
