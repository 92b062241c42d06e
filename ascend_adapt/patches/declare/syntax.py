"""Syntax trees: finds a definition in a source file, replaces an expression in it, and compiles it alone."""

from __future__ import annotations

import ast
import copy
import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from ascend_adapt import regular_files
from ascend_adapt.errors import PatchDrift, PatchSpecError

Definition = ast.FunctionDef | ast.AsyncFunctionDef
_Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Found:
    """A definition in a module's tree, with the enclosing classes or functions, outermost first."""

    tree: ast.Module
    around: tuple[ast.ClassDef | Definition, ...]
    node: ast.stmt


def parse_file(path: Path) -> ast.Module:
    """Return the syntax tree of a source file.

    Raises:
        PatchDrift: the file cannot be read, or is not valid in this Python version, such as Python 2 code.
    """
    try:
        source = regular_files.read_bytes(path)
    except OSError as error:
        raise PatchDrift(f"{path}: cannot be read: {error.strerror}") from error
    return parse(source, str(path))


def parse(source: str | bytes, name: str) -> ast.Module:
    """Return the syntax tree of a source text. ``name`` is used in messages.

    Raises:
        PatchDrift: as in ``parse_file``.
    """
    try:
        with warnings.catch_warnings():
            # With -W error, an invalid escape sequence in upstream's source would be a SyntaxError.
            warnings.simplefilter("ignore")
            return ast.parse(source, name)
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.lineno else ""
        raise PatchDrift(f"{name}: does not parse: {error.msg}{where}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        # The source has a null byte (Python 3.10), or expressions that are nested too deeply.
        raise PatchDrift(f"{name}: does not parse: {error or 'it is nested too deeply'}") from error


def find(tree: ast.Module, path: tuple[str, ...], line: int | None = None) -> list[Found]:
    """Return the definitions, assignments and imports that bind ``path`` in the module, also inside if and try.

    With ``line``, only definitions whose ``def`` or first decorator is on that line are returned.
    """
    return [found for found in _bound(tree, tree, path, ()) if line is None or line in _first_lines(found.node)]


def _bound(
    tree: ast.Module, scope: _Scope, path: tuple[str, ...], around: tuple[ast.ClassDef | Definition, ...]
) -> list[Found]:
    found = []
    for statement in statements(scope):
        if path[0] not in names_bound(statement):
            continue
        if len(path) == 1:
            found.append(Found(tree, around, statement))
        elif isinstance(statement, ast.ClassDef):
            found.extend(_bound(tree, statement, path[1:], (*around, statement)))
    return found


def statements(scope: ast.AST) -> list[ast.stmt]:
    """Return the statements of one scope in order, including those inside if, try, with and loops."""
    found: list[ast.stmt] = []
    for field in ("body", "orelse", "handlers", "finalbody"):
        for child in getattr(scope, field, ()):
            if isinstance(child, ast.stmt):
                found.append(child)
            if not isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                found.extend(statements(child))
    return found


def names_bound(statement: ast.stmt) -> set[str]:
    """Return the names that one statement binds in its scope."""
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        targets = [statement.target]
    else:
        return set()
    # ``f.attribute = value`` and ``d[key] = value`` only read a name.
    nodes = [node for target in targets for node in ast.walk(target)]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _first_lines(node: ast.AST) -> set[int]:
    decorators = getattr(node, "decorator_list", [])
    return {getattr(node, "lineno", -1), *(decorator.lineno for decorator in decorators)}


def digest(node: ast.AST) -> str:
    """Return a digest of a syntax tree: 16 hex digits, the same on every Python version.

    Docstrings and formatting do not change the digest.
    """
    return hashlib.sha256(_text(node).encode()).hexdigest()[:16]


# Fields that are not part of the program, or that differ between Python versions.
_IGNORED = ("ctx", "kind", "type_comment", "type_ignores")


def _text(value: Any) -> str:
    """Return a tree as text. The output of ast.unparse and ast.dump would depend on the Python version."""
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if not isinstance(value, ast.AST):
        return ascii(value)  # which characters repr() escapes depends on the Python version
    fields = {name: getattr(value, name, None) for name in value._fields if name not in _IGNORED}
    if isinstance(value, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        fields["body"] = value.body[ast.get_docstring(value, clean=False) is not None :]
    if isinstance(value, ast.JoinedStr):  # Python 3.12 appends an empty string to some f-strings
        fields["values"] = [one for one in value.values if getattr(one, "value", None) != ""]
    # Fields that later Python versions added are empty if an earlier version can parse the source.
    fields_text = [f"{name}={_text(field)}" for name, field in fields.items() if field is not None and field != []]
    return f"{type(value).__name__}({', '.join(fields_text)})"


def parse_fragment(text: str, subject: str) -> ast.expr | ast.stmt:
    """Parse one expression or statement.

    Raises:
        PatchSpecError: ``text`` is neither.
    """
    if not isinstance(text, str) or not text.strip():
        raise PatchSpecError(f"{subject}: {text!r}, expected code — pass one expression or statement")
    try:
        body = ast.parse(text.strip()).body
    except SyntaxError as error:
        raise PatchSpecError(f"{subject}: {text!r} is not Python: {error.msg}") from error
    if len(body) != 1:
        raise PatchSpecError(f"{subject}: {text!r} has {len(body)} statements, expected one expression or statement")
    statement = body[0]
    return statement.value if isinstance(statement, ast.Expr) else statement


def occurrences(node: ast.AST, fragment: ast.AST) -> list[ast.AST]:
    """Return the descendants of ``node`` that equal ``fragment``, outermost first."""
    wanted, kind = ast.dump(fragment), type(fragment)
    return [
        child for child in ast.walk(node) if type(child) is kind and child is not node and ast.dump(child) == wanted
    ]


def substitute(found: Found, old: ast.expr | ast.stmt, new: ast.expr | ast.stmt) -> None:
    """Replace ``old`` by ``new`` in the tree of a definition.

    Raises:
        PatchDrift: ``old`` does not occur exactly once.
    """
    places = occurrences(found.node, old)
    if len(places) != 1:
        times = f"{len(places)} times" if places else "nowhere"
        raise PatchDrift(f"expected {ast.unparse(old)!r} exactly once, found it {times}")
    _Substitution(places[0], new).visit(found.node)
    ast.fix_missing_locations(found.node)


def alone(found: Found) -> ast.Module:
    """Return a module with only this definition, nested as before.

    Enclosing classes are kept, because ``super()`` needs their cell, and private names are mangled with their names.
    """
    node = found.node
    for scope in reversed(found.around):
        around = copy.copy(scope)
        around.body, around.decorator_list = [node], []
        node = around
    futures: list[ast.stmt] = [
        statement
        for statement in found.tree.body
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    ]
    return ast.fix_missing_locations(ast.Module(body=[*futures, node], type_ignores=[]))


class _Substitution(ast.NodeTransformer):
    def __init__(self, place: ast.AST, new: ast.AST) -> None:
        self.place, self.new = place, new

    def visit(self, node: ast.AST) -> Any:
        if node is not self.place:
            return self.generic_visit(node)
        for child in ast.walk(self.new):
            ast.copy_location(child, node)
        return self.new


def code_of(module_code: CodeType, path: tuple[str, ...]) -> CodeType | None:
    """Return the code object at ``path`` (names of classes, then of the function) in a compiled module."""
    for name in path:
        inner = [c for c in module_code.co_consts if isinstance(c, CodeType) and c.co_name == name]
        if not inner:
            return None
        module_code = inner[-1]
    return module_code
