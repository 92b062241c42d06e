"""What a recipe makes of a dialect's arguments: a configuration, and what is to be said about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ascend_adapt.native.config import TrainConfig


@dataclass(frozen=True)
class Recipe:
    """A run as its dialect asks for it, before the number of its ranks is settled.

    ``ranks_per_node`` and ``nodes`` are the dialect's own words about it, or None. ``build`` takes the number of ranks
    in all and returns the configuration and the notes: what has no effect, and what was concluded.
    """

    dialect: str
    source: str
    ranks_per_node: int | None
    nodes: int | None
    build: Callable[[int], tuple[TrainConfig, list[str]]]
