"""Constants in source code, read without running it: literals, and versions joined from literals."""

from __future__ import annotations

import ast
from typing import Any

from ascend_adapt.patches.declare import syntax

_PARTS = (
    ast.Expression,
    ast.Constant,
    ast.Name,
    ast.Tuple,
    ast.List,
    ast.Subscript,
    ast.Slice,
    ast.BinOp,
    ast.Add,
    ast.Call,
    ast.Attribute,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.expr_context,
)
_FUNCTIONS = {"map": map, "str": str}


def value(tree: ast.Module, name: str) -> Any:
    """Return the value that the module's first assignment binds to ``name``, or None if it is not a constant.

    No code of the module runs. The call ``'.'.join(map(str, VERSION[:3]))`` is evaluated, other calls are not.
    """
    known: dict[str, Any] = {}
    for statement in syntax.statements(tree):
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
            continue
        if not _is_constant(statement.value, known):
            continue
        code = compile(ast.Expression(statement.value), "<literal>", "eval")
        try:
            found = eval(code, {"__builtins__": {}, **_FUNCTIONS}, dict(known))
        except (TypeError, ValueError, IndexError, KeyError):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        known.update({one.id: found for one in targets if isinstance(one, ast.Name) and one.id not in known})
    return known.get(name)


def _is_constant(expression: ast.expr, known: dict[str, Any]) -> bool:
    """Return whether an expression consists of literals, known names, and joins of their strings."""
    methods = [one.func for one in ast.walk(expression) if isinstance(one, ast.Call)]
    for one in ast.walk(expression):
        if not isinstance(one, _PARTS):
            return False
        if isinstance(one, ast.Name) and one.id not in known and one.id not in _FUNCTIONS:
            return False
        if isinstance(one, ast.Attribute) and (one.attr != "join" or one not in methods):
            return False
        if isinstance(one, ast.Call) and not _joins(one.func):
            return False
    return True


def _joins(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return isinstance(function.value, ast.Constant) and isinstance(function.value.value, str)
    return isinstance(function, ast.Name) and function.id in _FUNCTIONS
