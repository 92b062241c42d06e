"""Plugin hooks, whose implementations are marked ``@ascend_adapt.hookimpl``.

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
    """Return the patches of this plugin."""
    raise NotImplementedError


@hookspec
def register_kernels() -> Sequence[tuple[str, Any]]:
    """Return pairs (kernel name, backend). These backends are preferred to the built-in ones."""
    raise NotImplementedError


@hookspec
def launch_env(device: str, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return environment variables for every rank on this kind of device. The user's variables take precedence."""
    raise NotImplementedError


@hookspec
def adapt_programs(device: str, cuda_code: str) -> Any:
    """Return an object that adapts programs without patches, with ``describe()`` and ``undo()``, or None.

    enable() calls the hook, and disable() calls ``undo()``. ``describe()`` returns one sentence about the adapted
    programs, or "". ``cuda_code`` is the setting of enable().
    """
    raise NotImplementedError


@hookspec
def register_problems() -> Sequence[Path]:
    """Return the paths of this plugin's YAML files of known problems. They are read after a failure or on request."""
    raise NotImplementedError
