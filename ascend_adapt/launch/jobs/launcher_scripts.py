"""Scripts that start ranks themselves: these are started once, not once a device."""

from __future__ import annotations

import ast
from pathlib import Path

_NAMES = ("deepy.py",)
_RUNNERS = (
    "deepspeed.launcher.runner",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
)


def is_launcher(script: Path) -> bool:
    """Return whether a script is known by its name, or imports a launcher's own module; it is read, not run."""
    if script.name in _NAMES:
        return True
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False  # running it will say what is wrong with it
    return any(name == runner or name.startswith(f"{runner}.") for name in _imported(tree) for runner in _RUNNERS)


def _imported(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names
