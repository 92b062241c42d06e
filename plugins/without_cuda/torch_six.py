"""Provides ``torch._six`` to CUDA code: torch 2, which an NPU needs, no longer has it."""

from __future__ import annotations

from ascend_adapt import provide

from .. import torch_six as removed
from .programs import is_cuda_code

torch_six = provide(
    "torch._six",
    name="torch_six_of_programs",
    requires="torch>=2",
    seen_by=is_cuda_code,
    why="programs from before 2023 and timm 0.3 import inf and container_abcs from it; torch removed it in 2.0",
    until="programs that were written for torch 1 are no longer run",
    without="crash",
)(removed.fill)
