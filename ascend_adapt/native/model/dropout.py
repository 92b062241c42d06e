"""Dropout under tensor parallelism: ranks that hold the same activations draw the same masks, others do not.

Masks depend only on the default generators. Activation checkpointing restores these generators, so recomputation draws
the same masks. Masks differ from Megatron's, and between meshes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional

from ascend_adapt.native import device as devices
from ascend_adapt.native.parallel.tensor_parallel import TensorParallel


@contextmanager
def rank_rng(tp: TensorParallel, device: torch.device) -> Iterator[None]:
    """Fork the device's generator for this tensor-parallel rank; it is restored afterwards, so that ranks agree."""
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


def dropout_seed(tp: TensorParallel, device: torch.device) -> torch.Tensor:
    """Draw the seed of a fused kernel's dropout, int64 [1], on the device; ranks agree or differ as in ``dropout``."""
    if not tp.sequence:
        return torch.randint(2**62, (1,), device=device)
    with rank_rng(tp, device):
        return torch.randint(2**62, (1,), device=device)


def dropout(x: torch.Tensor, p: float, tp: TensorParallel, *, training: bool) -> torch.Tensor:
    """Dropout of ``x`` [B, S, H] between layers, with probability ``p``."""
    if not training or p == 0.0:
        return x
    if not tp.sequence:
        return functional.dropout(x, p)
    with rank_rng(tp, x.device):
        return functional.dropout(x, p)
