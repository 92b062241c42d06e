"""torch's DataLoader with the settings of every loader of the trainer, and the shutdown of its workers."""

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
        # It draws a seed for its workers; from the default generator, that would shift all later dropout.
        generator=torch.Generator(),
        worker_init_fn=leave_to_parent,
        **order,
    )


def owned(batch: MicroBatch) -> MicroBatch:
    """Return a batch of a worker in this process's own memory.

    Each tensor in shared memory holds a file descriptor: those of a step with hundreds of micro batches exceed
    `ulimit -n`.
    """
    return {name: tensor.clone() if tensor.is_shared() else tensor for name, tensor in batch.items()}


def end_workers(batches: Iterator[Any] | None) -> None:
    """End the workers of a loader's iterator, if it has any.

    A traceback may keep them alive; then Python waits for them forever at exit, because they ignore SIGTERM.
    """
    end = getattr(batches, "_shutdown_workers", None)
    if end is not None:
        end()
