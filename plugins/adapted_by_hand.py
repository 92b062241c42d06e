"""Scripts that Ascend adapted by hand (its ModelZoo's GPT-NeoX and GLM): what they import is there, and inert."""

from __future__ import annotations

import logging
from types import ModuleType

from ascend_adapt import Patch, hookimpl, patches_in, provide


@provide(
    "deepspeed_npu",
    why="scripts of Ascend's ModelZoo begin with importing it; it patches two old releases of DeepSpeed, unasked",
    until="no script imports it",
    without="crash",
)
def deepspeed_npu(module: ModuleType) -> None:
    """Fill in nothing, and say so: what it did to DeepSpeed, the patches here do."""
    logging.getLogger("ascend_adapt").warning(
        "deepspeed_npu: is not installed, an empty module takes its place — ascend_adapt's patches do its work"
    )


@hookimpl
def register_patches() -> list[Patch]:
    """Return the modules that are provided."""
    return patches_in(__name__)
