"""Dropout on tensor-parallel ranks: alike where they compute the same, each its own where they do not.

Every draw is a function of the default generators alone, so that activation checkpointing, which restores these, gives
the same numbers again. They are not Megatron's, nor the same on another mesh.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional

from ascend_adapt.native import device as devices
from ascend_adapt.native.parallel.tensor_parallel import TensorParallel


@contextmanager
def own_numbers(tp: TensorParallel, device: torch.device) -> Iterator[None]:
    """Inside, the device's random numbers differ from other tensor-parallel ranks'; after it they continue alike."""
    if tp.size == 1:
        yield
        return
    drawn = int(torch.randint(2**48, (), device="cpu"))
    before = devices.rng_state(device)
    devices.seed(device, drawn * tp.size + tp.rank)
    try:
        yield
    finally:
        devices.set_rng_state(device, before)


def dropout(x: torch.Tensor, share: float, tp: TensorParallel, *, training: bool) -> torch.Tensor:
    """Return ``x`` [B, S, H] between layers without a share of its numbers, the others scaled up."""
    if not training or share == 0.0:
        return x
    if not tp.sequence:
        return functional.dropout(x, share)
    with own_numbers(tp, x.device):
        return functional.dropout(x, share)
