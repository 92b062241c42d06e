"""Names that numpy dropped in 1.24 and 2.0, given back as what they were."""

from __future__ import annotations

from typing import Any

from ascend_adapt import Patch, Symptom, add

from ..code_bases import BIGSCIENCE, GLM, MEGATRON_DEEPSPEED

# numpy 1.20 to 1.23 tell what each was an alias of; those that are not listed are back in 2.0, or not used.
ALIASES: dict[str, Any] = {"float": float, "int": int, "bool": bool, "object": object, "str": str}


def _given_back(name: str, value: Any) -> Patch:
    return add(
        f"numpy:{name}",
        value=value,
        name=f"numpy_{name}",
        requires="numpy>=1.24",
        host=(BIGSCIENCE, GLM, MEGATRON_DEEPSPEED),
        why=f"numpy.{name} is used, which numpy dropped in 1.24",
        until="support for these code bases ends",
        without="crash",
        symptom=Symptom(reason="the fault is a name that numpy lacks"),
    )


PATCHES = tuple(_given_back(name, value) for name, value in ALIASES.items())
