"""Provides ``torch._six``, which torch removed in 2.0, to code bases that clip gradients with its inf."""

from __future__ import annotations

from ascend_adapt import provide

from .. import torch_six as removed
from ..code_bases import BIGSCIENCE, GLM

torch_six = provide(
    "torch._six",
    name="torch_six",
    requires="torch>=2",
    host=(BIGSCIENCE, GLM),
    why="the gradient clipping imports inf from it",
    until="support for these code bases ends",
    without="crash",
)(removed.fill)
