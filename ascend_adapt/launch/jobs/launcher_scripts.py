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
    if any(name == runner or name.startswith(f"{runner}.") for name in imported for runner in _RUNNERS):
        return True
    return any(name.startswith("torch.multiprocessing") for name in imported) and _spawns(tree)


def _spawns(node: ast.AST) -> bool:
    """Return whether spawn or start_processes is always called, or depends only on the number of devices.

    A script that spawns only with an option of its own, or without a launcher's environment, runs as ranks too.
    """
    if isinstance(node, ast.Call) and _name(node.func) in ("spawn", "start_processes"):
        return True
    if isinstance(node, ast.If) and not _compares_number(node.test) and "__main__" not in ast.dump(node.test):
        return False
    return any(_spawns(child) for child in ast.iter_child_nodes(node))


def _compares_number(test: ast.expr) -> bool:
    if not isinstance(test, ast.Compare) or "environ" in ast.dump(test):
        return False
    return any(isinstance(one, ast.Constant) and type(one.value) is int for one in (test.left, *test.comparators))


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", "") or getattr(function, "id", "")


def _imported(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names
