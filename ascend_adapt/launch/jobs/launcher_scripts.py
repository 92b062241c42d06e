"""Detects scripts that start ranks themselves; such a script is started once, not once per device."""

from __future__ import annotations

import ast
from pathlib import Path

from ascend_adapt import regular_files

_NAMES = ("deepy.py",)
_RUNNERS = (
    "deepspeed.launcher.runner",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
)
_SPAWN = ("spawn", "start_processes")
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
    if any(name == runner or name.startswith(f"{runner}.") for name in _imported(tree) for runner in _RUNNERS):
        return True
    spawning, used = _spawning(tree), _used(tree)
    return bool(spawning) and not _RANKS & used and _always_calls(spawning, used, tree)


def _always_calls(names: set[str], used: set[str], node: ast.AST) -> bool:
    """Return whether one of these functions is called, if not under a condition other than a number of devices.

    A script that spawns only with an option of its own, or without a launcher's environment, runs as ranks too.
    """
    if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
        return True
    if isinstance(node, ast.FunctionDef) and node.name not in used:
        return False
    if (
        isinstance(node, (ast.If, ast.IfExp))
        and not _compares_number(node.test)
        and "__main__" not in ast.unparse(node.test)
    ):
        return False
    if isinstance(node, ast.ExceptHandler):
        return False
    return any(_always_calls(names, used, child) for child in ast.iter_child_nodes(node))


def _compares_number(test: ast.expr) -> bool:
    if not isinstance(test, ast.Compare) or "environ" in ast.unparse(test):
        return False
    return any(isinstance(one, ast.Constant) and type(one.value) is int for one in (test.left, *test.comparators))


def _spawning(tree: ast.Module) -> set[str]:
    """Return the names that a script has for torch's spawn() and start_processes()."""
    modules, functions = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "torch.multiprocessing" and alias.asname:
                    modules.add(alias.asname)
                elif alias.name == "torch" or (alias.name.startswith("torch.") and not alias.asname):
                    modules.add(f"{alias.asname or 'torch'}.multiprocessing")
        elif isinstance(node, ast.ImportFrom) and not node.level:
            of = {alias.name: alias.asname or alias.name for alias in node.names}
            if node.module == "torch" and "multiprocessing" in of:
                modules.add(of["multiprocessing"])
            elif node.module == "torch.multiprocessing":
                functions |= {of[name] for name in _SPAWN if name in of}
    return functions | {f"{module}.{name}" for module in modules for name in _SPAWN}


def _used(tree: ast.Module) -> set[str]:
    """Return the names that a script uses, and the environment variables that it reads, not those that it sets."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Call):
            found |= {one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)}
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
            found.add(str(node.left.value))
        elif (
            isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant)
        ):
            found.add(str(node.slice.value))
    return found


def _imported(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names
