"""Run code written for NVIDIA GPUs on Ascend NPUs, unmodified: declared, version-gated, reversible, reported patches.

import ascend_adapt
ascend_adapt.enable()
"""

import warnings
from typing import TYPE_CHECKING, Any

from ascend_adapt.patches.declare.call import Call
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.discovery import patches_in
from ascend_adapt.patches.declare.outcome import Outcome, Status
from ascend_adapt.patches.declare.spec import Patch, add, entry, provide, replace, rewrite, wrap
from ascend_adapt.patches.declare.symptom import Symptom
from ascend_adapt.runtime.enabling import disable, enable, enabled, status

if TYPE_CHECKING:
    import pluggy

    hookimpl = pluggy.HookimplMarker("ascend_adapt")

__version__ = "0.1.0"

__all__ = [
    "Call",
    "CodeBase",
    "Outcome",
    "Patch",
    "Status",
    "Symptom",
    "add",
    "disable",
    "enable",
    "enabled",
    "entry",
    "hookimpl",
    "patches_in",
    "provide",
    "replace",
    "rewrite",
    "status",
    "wrap",
]


def __getattr__(name: str) -> Any:
    # Only plugins need pluggy; a script that just imports this package should not pay for it.
    if name == "hookimpl":
        import pluggy

        marker = globals()["hookimpl"] = pluggy.HookimplMarker("ascend_adapt")
        return marker
    if name == "Host":
        warnings.warn("ascend_adapt.Host is now ascend_adapt.CodeBase", DeprecationWarning, stacklevel=2)
        return CodeBase
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
