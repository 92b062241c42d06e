"""Plugin hooks; an implementation is marked ``@ascend_adapt.hookimpl``.

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
    """Return pairs (kernel name, backend); they are preferred to the built-in backends."""
    raise NotImplementedError


@hookspec
def launch_env(device: str, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return environment variables for every rank on this kind of device; variables set by the user win."""
    raise NotImplementedError


@hookspec
def adapt_programs(device: str, cuda_code: str) -> Any:
    """Return an object that adapts programs without patches, with ``describe()`` and ``undo()``; or None.

    enable() calls the hook, and disable() calls ``undo()``. ``describe()`` returns what was adapted so far in one
    sentence, or "". ``cuda_code`` is the setting of that name.
    """
    raise NotImplementedError


@hookspec
def register_problems() -> Sequence[Path]:
    """Return the YAML files of known problems of this plugin; they are read after a failure or on request."""
    raise NotImplementedError
