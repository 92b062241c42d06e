"""Conflicts: two patches that change a location which only one patch may change."""

from __future__ import annotations

from ascend_adapt.patches.declare.spec import Patch, Registered


def conflict_text(one: Registered, other: Registered) -> str:
    """Return the message for two patches that change the same location."""
    return (
        f"{exclusive_place(one.patch)}: {one} and {other} both change it, expected one of them — disable "
        f"{one.full_name} or {other.full_name}"
    )


def exclusive_place(patch: Patch) -> str:
    """Return the location that no other patch may change, or ``""`` for kinds that can be combined."""
    return patch.place if patch.kind in ("entry", "replace", "rewrite") else ""
