"""Dialects of the native trainer."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from ascend_adapt.errors import ConfigError
from ascend_adapt.recipes.recipe import Recipe

DIALECTS = ("neox", "megatron", "oneflow", "glm")


def read(dialect: str, argv: Sequence[str]) -> Recipe:
    """Return the recipe of a dialect's arguments.

    Raises:
        ConfigError: the dialect does not exist, or its arguments are invalid.
    """
    if dialect not in DIALECTS:
        raise ConfigError(f"--native: {dialect!r}, expected one of {', '.join(DIALECTS)} — choose one")
    recipe: Recipe = import_module(f"ascend_adapt.recipes.{dialect}").read(argv)
    return recipe
