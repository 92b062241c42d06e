"""What a recipe makes of a dialect's arguments: a configuration, and what is to be said about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ascend_adapt.native.config.train_config import TrainConfig


@dataclass(frozen=True)
class Recipe:
    """A run as its dialect asks for it, before the number of its ranks is settled.

    ``build`` takes the number of ranks in all and returns the configuration and the notes: what has no effect, and what
    was concluded. ``save`` is the folder of its checkpoints. The rest are the dialect's own words about machines and
    ranks, None or empty where it has none.
    """

    dialect: str
    source: str
    build: Callable[[int], tuple[TrainConfig, list[str]]]
    save: str | None = None
    ranks_per_node: int | None = None
    nodes: int | None = None
    node_ips: tuple[str, ...] = ()
    hostfile: str | None = None
    include: str | None = None
    exclude: str | None = None
