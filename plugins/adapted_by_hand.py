"""Provides an empty deepspeed_npu for scripts that Ascend has modified (GPT-NeoX and GLM of its ModelZoo)."""

from __future__ import annotations

import logging
from types import ModuleType

from ascend_adapt import Patch, hookimpl, patches_in, provide


@provide(
    "deepspeed_npu",
    why="scripts of Ascend's ModelZoo import it first, and its import patches two old releases of DeepSpeed",
    until="no script imports it",
    without="crash",
)
def deepspeed_npu(module: ModuleType) -> None:
    """Provide an empty module and log this; ascend_adapt's patches do what deepspeed_npu did to DeepSpeed."""
    logging.getLogger("ascend_adapt").warning(
        "deepspeed_npu: is not installed, an empty module replaces it — ascend_adapt's patches do its work"
    )


@hookimpl
def register_patches() -> list[Patch]:
    """Return the patches of this module."""
    return patches_in(__name__)
