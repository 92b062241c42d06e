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
    """Return whether a script has a launcher's name or imports a launcher's module; the script is parsed, not run."""
    if script.name in _NAMES:
        return True
    try:
        tree = ast.parse(regular_files.read_bytes(script))
    except (OSError, SyntaxError, ValueError):
        return False  # Python will report the problem when the script runs.
    return any(name == runner or name.startswith(f"{runner}.") for name in _imported(tree) for runner in _RUNNERS)


def _imported(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names
