"""Recipe: the run that a dialect's arguments request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ascend_adapt.config.train_config import TrainConfig


@dataclass(frozen=True)
class Recipe:
    """The run that a dialect's arguments request, before the world size is known.

    ``build`` takes the world size and returns the configuration and notes for the log, such as options that have no
    effect. ``save`` is the checkpoint folder. The other fields are the dialect's settings for hosts and ranks, None or
    empty if it has none.
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
