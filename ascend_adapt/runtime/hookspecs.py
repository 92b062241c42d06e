"""The hooks a plugin may implement, each marked ``@ascend_adapt.hookimpl`` and returning what its first line says.

A plugin is a module (or object) named by an entry point of the group ``ascend_adapt``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pluggy

from ascend_adapt.patches.declare.spec import Patch

hookspec = pluggy.HookspecMarker("ascend_adapt")


@hookspec
def register_patches() -> Sequence[Patch]:
    """Return the patches this plugin contributes."""
    raise NotImplementedError


@hookspec
def register_kernels() -> Sequence[tuple[str, Any]]:
    """Return pairs of a kernel's name and a backend that extend the built-in ones."""
    raise NotImplementedError


@hookspec
def launch_env(device: str, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that every rank on this kind of device needs; what the user has set already wins."""
    raise NotImplementedError


@hookspec(firstresult=True)
def read_recipe(path: Path) -> Any:
    """Return a training configuration if the file is in a dialect this plugin knows, else None."""
    raise NotImplementedError
