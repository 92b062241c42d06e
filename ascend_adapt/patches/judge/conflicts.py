"""Conflicts: what only one patch may change."""

from __future__ import annotations

from ascend_adapt.patches.declare.spec import Patch, Registered


def conflict_text(one: Registered, other: Registered) -> str:
    """Return how to tell that two patches claim one place."""
    return (
        f"{exclusive_place(one.patch)}: {one} and {other} both change it, expected one of them — disable "
        f"{one.plugin}.{one.name} or {other.plugin}.{other.name}"
    )


def exclusive_place(patch: Patch) -> str:
    """Return what only one patch may change, or ``""`` if there is no such thing."""
    return patch.place if patch.kind in ("entry", "replace", "rewrite") else ""
