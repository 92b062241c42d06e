"""Detects scripts that start ranks themselves; such a script is started once, not once per device."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from ascend_adapt import regular_files

_NAMES = ("deepy.py",)
_RUNNERS = (
    "deepspeed.launcher.runner",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
)
_MODULE = "torch.multiprocessing"
_SPAWNS = {f"{module}.{name}" for module in (_MODULE, f"{_MODULE}.spawn") for name in ("spawn", "start_processes")}
_RANKS = {"RANK", "LOCAL_RANK"}
"""Variables that a script reads if it can also run as one of a launcher's ranks."""


def is_launcher(script: Path) -> bool:
    """Return whether a script has a launcher's name, imports a launcher's module or always calls torch's spawn.

    The script is parsed, not run.
    """
    if script.name in _NAMES:
        return True
    try:
        tree = ast.parse(regular_files.read_bytes(script))
    except (OSError, SyntaxError, ValueError):
        return False  # Python will report the problem when the script runs.
    imported = _imported(tree)
    if any(name == runner or name.startswith(f"{runner}.") for _, name in imported for runner in _RUNNERS):
        return True
    return not _reads_rank(tree) and _always_spawns(tree, dict(imported))


def _reads_rank(tree: ast.Module) -> bool:
    """Return whether a script reads its rank from the environment; spawned functions only set it."""
    read: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            read += node.args
        elif isinstance(node, ast.Compare):
            read.append(node.left)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            read.append(node.slice)
    return any(isinstance(one, ast.Constant) and one.value in _RANKS for one in read)


def _always_spawns(tree: ast.Module, imported: dict[str, str]) -> bool:
    """Return whether torch's spawn is called under no condition other than a number of devices.

    A script that spawns only with an option of its own, or without a launcher's environment, runs as ranks too.
    """
    functions: dict[str, list[ast.AST]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            functions[node.name].extend(_runs(node))
    reached: list[ast.AST] = [tree]
    while reached:
        node = reached.pop()
        if isinstance(node, ast.Call) and _full_name(node.func, imported) in _SPAWNS:
            return True
        # A function's name counts as its call: it may be passed on, as in fire.Fire(main).
        name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        reached += functions.pop(node.id if isinstance(node, ast.Name) else name, [])
        reached += [] if isinstance(node, ast.FunctionDef | ast.Lambda) else _runs(node)
    return False


def _runs(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a statement, expression or function that run whenever it does."""
    for _, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield part
            if isinstance(part, ast.If) and _reads_environment(part.test) and isinstance(part.body[-1], ast.Return):
                return  # as a rank of a launcher
        if _is_doubtful(node):
            return  # after the condition


def _is_doubtful(node: ast.AST) -> bool:
    """Return whether what follows the first part of a node may not run."""
    if isinstance(node, ast.If | ast.IfExp):
        return not _compares_number(node.test) and "__main__" not in ast.dump(node.test)
    return isinstance(node, ast.Match)


def _compares_number(test: ast.expr) -> bool:
    if not isinstance(test, ast.Compare) or _reads_environment(test):
        return False
    return any(isinstance(one, ast.Constant) and type(one.value) is int for one in (test.left, *test.comparators))


def _reads_environment(test: ast.expr) -> bool:
    return "environ" in ast.dump(test)


def _full_name(function: ast.expr, imported: dict[str, str]) -> str:
    first, *rest = ast.unparse(function).split(".")
    return ".".join([imported.get(first, first), *rest])


def _imported(tree: ast.Module) -> list[tuple[str, str]]:
    """Return what a script imports: the names that it uses, each with the full name."""
    names: list[tuple[str, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(alias.asname or alias.name, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]
    return names
