"""The dialects a native run can be written in."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.recipe import Recipe

DIALECTS = ("neox", "megatron", "oneflow")


def read(dialect: str, argv: Sequence[str]) -> Recipe:
    """Return what ``dialect`` makes of its arguments.

    Raises:
        ConfigError: there is no such dialect, or it cannot mean these arguments.
    """
    if dialect == "glm":
        raise ConfigError("--native glm: is not built yet — run GLM's own code under ascend-run")
    if dialect not in DIALECTS:
        raise ConfigError(f"--native: {dialect!r}, expected one of {', '.join(DIALECTS)} — choose one")
    recipe: Recipe = import_module(f"ascend_adapt.recipes.{dialect}").read(argv)
    return recipe
