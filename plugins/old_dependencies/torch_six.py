"""``torch._six``, which torch lost in 2.0."""

from __future__ import annotations

import collections.abc
import math
from types import ModuleType

from ascend_adapt import provide

from ..code_bases import BIGSCIENCE, GLM


@provide(
    "torch._six",
    requires="torch>=2",
    host=(BIGSCIENCE, GLM),
    why="the gradient clipping imports inf from it",
    until="support for these code bases ends",
    without="crash",
)
def torch_six(module: ModuleType) -> None:
    """Fill in what torch 1.13 had there."""
    module.inf, module.nan = math.inf, math.nan  # type: ignore[attr-defined]
    module.string_classes, module.int_classes = (str, bytes), int  # type: ignore[attr-defined]
    module.container_abcs, module.PY3 = collections.abc, True  # type: ignore[attr-defined]
