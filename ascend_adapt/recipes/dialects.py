"""Dialects of the native trainer.

Each dialect, built-in or not, is an entry point in the group ``ascend_adapt.dialects``: a function that takes the
arguments and returns a ``Recipe``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ascend_adapt import extensions
from ascend_adapt.errors import SettingsError
from ascend_adapt.recipes.recipe import Recipe

GROUP = "ascend_adapt.dialects"


def read(dialect: str, argv: Sequence[str]) -> Recipe:
    """Return the recipe of a dialect's arguments.

    Raises:
        SettingsError: the dialect does not exist or cannot be imported, or its arguments are invalid.
    """
    try:
        reader = extensions.load(GROUP, dialect, built_in="megatron")
    except SettingsError as error:
        raise SettingsError(f"--native {error}") from error
    recipe: Recipe = reader(argv)
    return recipe
