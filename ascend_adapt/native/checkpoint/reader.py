"""Safe reader of distributed checkpoints: neither metadata nor shards can run code.

torch reads ``.metadata`` by plain ``pickle.load``, and, by ``weights_only=False``, every entry that the metadata
declares as bytes rather than as a tensor. Here the metadata may name only the classes below, and every entry is a
tensor, which torch reads by ``weights_only=True``.

Sources: torch 2.13.0 torch/distributed/checkpoint/filesystem.py FileSystemReader, default_planner.py load_bytes.
"""

from __future__ import annotations

import pathlib
import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from ascend_adapt.errors import TrainingError, one_line

METADATA = ".metadata"
_STRUCTURES = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
_ALLOWED = {
    *((_STRUCTURES, name) for name in ("ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta")),
    *((_STRUCTURES, name) for name in ("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING")),
    (_FILES, "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}
# The folder of the checkpoint; Python 3.13 moved the class.
_PATHS = {(module, "PosixPath") for module in ("pathlib", "pathlib._local")}


class CheckpointReader(dcp.FileSystemReader):
    """torch's FileSystemReader, for checkpoints from untrusted sources."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata, which may describe tensors only.

        Raises:
            TrainingError: it is damaged, names a class other than torch's own structures, or has other entries.
        """
        file = Path(self.path) / METADATA
        with file.open("rb") as stream:
            metadata = _RestrictedUnpickler(stream, file).metadata()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _RestrictedUnpickler(pickle.Unpickler):
    def __init__(self, stream: Any, file: Path):
        super().__init__(stream)
        self._file = file

    def metadata(self) -> Metadata:
        try:
            found = self.load()
            entries, places = dict(found.state_dict_metadata), dict(found.storage_data)
            names = [place.relative_path for place in places.values()]
            elsewhere = [name for name in names if Path(name).name != name]
        except (TrainingError, MemoryError):
            raise
        # What a damaged pickle raises is not documented to be one error.
        except Exception as error:
            raise TrainingError(
                f"{self._file}: cannot be read ({type(error).__name__}: {one_line(error)}), expected the metadata of a "
                "native checkpoint — load another checkpoint"
            ) from error
        others = sorted(str(name) for name, entry in entries.items() if not isinstance(entry, TensorStorageMetadata))
        if others:
            raise TrainingError(
                f"{self._file}: {others[0]} is not a tensor, expected tensors only, because other objects can run code "
                "— load a checkpoint that the native trainer saved"
            )
        if elsewhere:
            raise TrainingError(
                f"{self._file}: names the file {elsewhere[0]!r}, expected files in its own folder — load a checkpoint "
                "that the native trainer saved"
            )
        return found

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class; nothing is imported before the check."""
        if (module, name) in _PATHS:
            return pathlib.PurePosixPath
        if module == "torch" and isinstance(vars(torch).get(name), torch.dtype):
            return vars(torch)[name]
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        raise TrainingError(
            f"{self._file}: names {module}.{name}, which can run code, expected the metadata of tensors only — do not "
            "use this file; load a checkpoint that the native trainer saved"
        )
