"""Data loader workers: torch's DataLoader with the trainer's settings, and the shutdown of its workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ascend_adapt.native.signals import leave_to_parent
from ascend_adapt.native.step.pipeline import MicroBatch


def data_loader(
    dataset: torch.utils.data.Dataset[Any], *, workers: int, device: torch.device, **order: Any
) -> torch.utils.data.DataLoader[Any]:
    """Return a loader of a dataset in the ``order`` of a sampler or batch sampler."""
    return torch.utils.data.DataLoader(
        dataset,
        num_workers=workers,
        pin_memory=device.type != "cpu",
        # The loader draws a seed for its workers; drawing from the default generator would change all later dropout
        # masks.
        generator=torch.Generator(),
        worker_init_fn=leave_to_parent,
        **order,
    )


def owned(batch: MicroBatch) -> MicroBatch:
    """Copy a worker's batch from shared memory into this process's memory.

    Each tensor in shared memory holds a file descriptor, and a step with hundreds of micro batches would exceed `ulimit
    -n`.
    """
    return {name: tensor.clone() if tensor.is_shared() else tensor for name, tensor in batch.items()}


def end_workers(batches: Iterator[Any] | None) -> None:
    """End the workers of a loader's iterator, if it has any.

    A traceback may keep the workers alive; Python would then wait for them forever at exit, because they ignore
    SIGTERM.
    """
    end = getattr(batches, "_shutdown_workers", None)
    if end is not None:
        end()
