"""Recipe: a run as its dialect's arguments request it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ascend_adapt.config.train_config import TrainConfig


@dataclass(frozen=True)
class Recipe:
    """A run as its dialect requests it, before the world size is known.

    ``build`` takes the world size and returns the configuration and notes for the log, such as options that have no
    effect. ``save`` is the checkpoint folder. The other fields are the dialect's own settings of hosts and ranks, None
    or empty if it has none.
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
