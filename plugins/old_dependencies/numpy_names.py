"""Names that numpy dropped in 1.24, given back as what they were."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Patch, Symptom, add

from ..code_bases import BIGSCIENCE, GLM


def _given_back(name: str, requires: str, host: str, value: Any) -> Patch:
    return add(
        f"numpy:{name}",
        value=value,
        name=f"numpy_{name}",
        requires=requires,
        host=host,
        why=f"numpy.{name} is used, which numpy dropped in 1.24",
        until="support for the code base ends",
        without="crash",
        symptom=Symptom(reason="the fault is a name that numpy lacks"),
    )


GIVEN_BACK = (
    _given_back("float", "numpy>=1.24", BIGSCIENCE, float),
    # As numpy 1.20 to 1.23 have it; from 2.0 on it is C's long.
    _given_back("long", "numpy>=1.24,<2", GLM, int),
)
