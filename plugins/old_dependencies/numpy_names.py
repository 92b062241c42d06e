"""Restores names that numpy removed in 1.24, with their former values."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Patch, Symptom, add

from ..code_bases import BIGSCIENCE, GLM


def _restored(name: str, requires: str, host: str, value: Any) -> Patch:
    return add(
        f"numpy:{name}",
        value=value,
        name=f"numpy_{name}",
        requires=requires,
        host=host,
        why=f"it uses numpy.{name}, which numpy removed in 1.24",
        until="support for the code base ends",
        without="crash",
        symptom=Symptom(reason="the fault is that numpy lacks a name"),
    )


RESTORED = (
    _restored("float", "numpy>=1.24", BIGSCIENCE, float),
    # As in numpy 1.20 to 1.23; since 2.0 it is C's long.
    _restored("long", "numpy>=1.24,<2", GLM, int),
)
