"""Reader of distributed checkpoints for ``dcp.load``, which never executes code from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from ascend_adapt.checkpoint.distributed import read_metadata


class CheckpointReader(dcp.FileSystemReader):
    """torch's FileSystemReader, for checkpoints from untrusted sources."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata, which may describe tensors only.

        Raises:
            CheckpointError: the metadata is damaged, names a class that is not one of torch's own structures, or
            describes anything but tensors.
        """
        metadata = read_metadata(Path(self.path))
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
