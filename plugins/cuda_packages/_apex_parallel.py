"""apex.parallel, implemented with the torch classes that superseded it. Source: apex's documentation of parallel."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import SyncBatchNorm

__all__ = ["DistributedDataParallel", "SyncBatchNorm", "convert_syncbn_model"]


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):  # type: ignore[misc]
    """Data parallelism that averages gradients over all ranks; apex's communication options have no effect."""

    def __init__(self, module: Any, *args: Any, **options: Any) -> None:
        super().__init__(module, broadcast_buffers=False)


def convert_syncbn_model(module: Any, process_group: Any = None, channel_last: bool = False) -> Any:
    """Return the module with its batch norms replaced by synchronized ones."""
    return SyncBatchNorm.convert_sync_batchnorm(module, process_group)
