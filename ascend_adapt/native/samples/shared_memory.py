"""Batches that DataLoader workers put into shared memory."""

from __future__ import annotations

from ascend_adapt.native.step.pipeline import MicroBatch


def owned(batch: MicroBatch) -> MicroBatch:
    """Return a batch in this process's own memory.

    Each tensor of a worker holds a file descriptor: those of a step with hundreds of micro batches exceed `ulimit -n`.
    """
    return {name: tensor.clone() if tensor.is_shared() else tensor for name, tensor in batch.items()}
