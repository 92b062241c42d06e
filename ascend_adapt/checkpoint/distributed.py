"""torch.distributed.checkpoint files, read and written one tensor at a time, without running code from them.

torch reads ``.metadata`` with plain ``pickle.load``, and reads every entry that the metadata declares as bytes with
``weights_only=False``. Here the metadata may name only the classes below, and entries of bytes are rejected.
Megatron-core is the exception: its metadata also has save plans, which become inert stand-ins, and its entries of bytes
are read with the same restrictions as torch.save files.

torch's own writer keeps every tensor in memory until the file is complete.

Sources: torch 2.13.0 torch/distributed/checkpoint/filesystem.py, default_planner.py load_bytes;
Megatron-LM@core_v0.12.0 megatron/core/dist_checkpointing/strategies/torch.py.
"""

from __future__ import annotations

import io
import math
import pathlib
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from ascend_adapt import pickled_enums, regular_files
from ascend_adapt.checkpoint.torch_files import StandIn, load_torch_file, member_or_stand_in
from ascend_adapt.checkpoint.writing import owned
from ascend_adapt.errors import CheckpointError, type_and_message

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
_OF_MEGATRON = ("torch.distributed.checkpoint.planner", "megatron.core.dist_checkpointing.strategies.torch")


def read_metadata(folder: Path, *, of_megatron: bool = False) -> Metadata:
    """Return the metadata of a checkpoint, which may describe only tensors unless ``of_megatron`` is set.

    Raises:
        CheckpointError: the metadata is damaged, names a class that is not allowed, or has entries that are not
        tensors.
    """
    file = folder / METADATA
    with regular_files.open_binary(file) as stream:
        return _RestrictedUnpickler(stream, file, of_megatron=of_megatron).metadata()


class DistributedTensors:
    """Tensors of a distributed checkpoint, each assembled from its chunks."""

    def __init__(self, folder: Path, *, of_megatron: bool = False) -> None:
        """Read the metadata; raises the errors of ``read_metadata``."""
        self.folder = folder
        self._metadata = read_metadata(folder, of_megatron=of_megatron)
        self._places = self._metadata.storage_data
        entries = self._metadata.state_dict_metadata
        self.tensors = {name: one for name, one in entries.items() if isinstance(one, TensorStorageMetadata)}
        self.others = sorted(set(entries) - set(self.tensors))

    def __call__(self, name: str, first: int | None = None) -> torch.Tensor:
        """Return a tensor, or its slice [first, ...]; only the required chunks are read.

        Raises:
            CheckpointError: a chunk is damaged or missing.
        """
        entry = self.tensors[name]
        skip = 0 if first is None else 1
        whole = torch.empty(entry.size[skip:], dtype=entry.properties.dtype)
        filled = 0
        for chunk in entry.chunks:
            offsets, sizes = chunk.offsets, chunk.sizes
            if first is not None and not offsets[0] <= first < offsets[0] + sizes[0]:
                continue
            piece = self._chunk(MetadataIndex(name, offsets), tuple(sizes))
            if first is not None:
                piece = piece[first - offsets[0]]
            place = tuple(slice(at, at + size) for at, size in zip(offsets[skip:], sizes[skip:], strict=True))
            whole[place] = piece
            filled += piece.numel()
        if filled != whole.numel():
            raise CheckpointError(
                f"{self.folder}: {name} is incomplete, expected all of its chunks — restore its files"
            )
        return whole

    def bytes_of(self, name: str) -> Any:
        """Return an entry of bytes, which may only hold tensors and plain data."""
        return load_torch_file(self.folder, io.BytesIO(self._slice(MetadataIndex(name))))

    def _chunk(self, index: MetadataIndex, shape: tuple[int, ...]) -> torch.Tensor:
        content = load_torch_file(self.folder, io.BytesIO(self._slice(index)))
        if not isinstance(content, torch.Tensor) or tuple(content.shape) != shape:
            raise CheckpointError(
                f"{self.folder}: {index.fqn} does not have its recorded shape, expected {list(shape)}"
            )
        return content

    def _slice(self, index: MetadataIndex) -> bytes:
        place = self._places.get(index)
        if place is None or getattr(place, "transform_descriptors", None):
            raise CheckpointError(
                f"{self.folder}: {index.fqn} is missing or compressed, expected plain bytes — save it uncompressed"
            )
        try:
            with regular_files.open_binary(self.folder / place.relative_path) as stream:
                stream.seek(place.offset)
                content: bytes = stream.read(place.length)
                return content
        except OSError as error:
            raise CheckpointError(
                f"{self.folder / place.relative_path}: {error.strerror}, expected a part of the checkpoint — copy all "
                "of its files"
            ) from error


@dataclass(frozen=True)
class Entry:
    """Entry for ``write_distributed``: a tensor, or data that is stored as bytes.

    ``stacked``: the tensor is slice [number, ...] of a tensor [count, ...] under this name.
    """

    name: str
    content: Any
    stacked: tuple[int, int] | None = None


def write_distributed(folder: Path, contents: Iterable[Entry]) -> None:
    """Write entries as a single rank would, with one entry in memory at a time."""
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    file = "__0_0.distcp"
    with (folder / file).open("wb") as stream:
        for one in contents:
            begin = stream.tell()
            if isinstance(one.content, torch.Tensor):
                tensor = owned(one.content if one.stacked is None else one.content[None])
                torch.save(tensor, stream)
                index = MetadataIndex(one.name, _add_chunk(entries, one, tensor))
            else:
                torch.save(one.content, stream)
                entries[one.name] = BytesStorageMetadata()
                index = MetadataIndex(one.name)
            places[index] = _StorageInfo(file, begin, stream.tell() - begin)
    metadata = Metadata(entries, planner_data={name: (name,) for name in entries}, storage_data=places)
    metadata.storage_meta = StorageMeta()
    with (folder / METADATA).open("wb") as stream:
        pickle.dump(metadata, stream)


def _add_chunk(entries: dict[str, Any], one: Entry, tensor: torch.Tensor) -> torch.Size:
    """Add a tensor to the metadata's entries, and return its offsets in the full tensor with this name."""
    number, count = one.stacked or (0, tensor.shape[0] if tensor.dim() else 0)
    offsets = torch.Size([number, *[0] * (tensor.dim() - 1)][: tensor.dim()])
    size = torch.Size([count, *tensor.shape[1:]][: tensor.dim()])
    if one.name not in entries:
        entries[one.name] = TensorStorageMetadata(TensorProperties.create_from_tensor(tensor), size, [])
    entries[one.name].chunks.append(ChunkStorageMetadata(offsets, tensor.shape))
    return offsets


def _check_sizes(entries: Mapping[str, Any], places: Mapping[MetadataIndex, Any], folder: Path) -> None:
    """Check that the files can hold every entry: sizes in the metadata are allocated before the files are read.

    Raises:
        ValueError, TypeError: an entry does not fit its files.
    """
    files = {name: folder / name for name in {one.relative_path for one in places.values()}}
    ends = {name: file.stat().st_size for name, file in files.items() if file.is_file()}
    stored: Counter[str] = Counter()
    for index, place in places.items():
        end = ends.get(place.relative_path, place.offset + place.length)
        if min(place.offset, place.length) < 0 or place.offset + place.length > end:
            raise ValueError(f"the metadata places {index.fqn} outside of {place.relative_path}")
        # Megatron-core may compress.
        stored[index.fqn] += place.length if not getattr(place, "transform_descriptors", None) else 1 << 62
    for name, entry in entries.items():
        if not isinstance(entry, TensorStorageMetadata):
            continue
        if min(entry.size, default=0) < 0 or math.prod(entry.size) * entry.properties.dtype.itemsize > stored[name]:
            raise ValueError(
                f"{name} is declared as {list(entry.size)}, but only {stored[name]} bytes of it are stored"
            )
        for chunk in entry.chunks:
            for offset, size, extent in zip(chunk.offsets, chunk.sizes, entry.size, strict=True):
                if min(offset, size) < 0 or offset + size > extent:
                    raise ValueError(f"{name} has a chunk outside of its declared size {list(entry.size)}")


class _RestrictedUnpickler(pickle.Unpickler):
    def __init__(self, stream: Any, file: Path, *, of_megatron: bool) -> None:
        super().__init__(stream)
        self._file, self._of_megatron = file, of_megatron
        self._expected = "metadata that describes only tensors" if not of_megatron else "Megatron-core's metadata"

    def metadata(self) -> Metadata:
        try:
            found = self.load()
            entries, places = dict(found.state_dict_metadata), dict(found.storage_data)
            names = [place.relative_path for place in places.values()]
            elsewhere = [name for name in names if Path(name).name != name or "\0" in name]
            if not elsewhere:
                _check_sizes(entries, places, self._file.parent)
        except (CheckpointError, MemoryError):
            raise
        # The errors that a damaged pickle raises are not documented.
        except Exception as error:
            raise CheckpointError(
                f"{self._file}: cannot be read ({type_and_message(error)}), expected the metadata of a "
                "distributed checkpoint — load another checkpoint"
            ) from error
        others = sorted(str(name) for name, entry in entries.items() if not isinstance(entry, TensorStorageMetadata))
        if others and not self._of_megatron:
            raise CheckpointError(
                f"{self._file}: {others[0]} is not a tensor, expected only tensors, because other objects can run code "
                "— load a checkpoint that the native trainer saved"
            )
        if elsewhere:
            raise CheckpointError(
                f"{self._file}: names the file {elsewhere[0]!r}, expected files in its own folder — do not use this "
                "checkpoint"
            )
        return found

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class. The name is checked before anything is imported."""
        if f"{module}.{name}" == pickled_enums.GETATTR:
            return member_or_stand_in
        if (module, name) in _PATHS:
            return pathlib.PurePosixPath
        if module == "torch" and isinstance(vars(torch).get(name), torch.dtype):
            return vars(torch)[name]
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if self._of_megatron and (module in _OF_MEGATRON or (module, name) == (_STRUCTURES, "BytesStorageMetadata")):
            return type(name, (StandIn,), {"__module__": __name__})
        raise CheckpointError(
            f"{self._file}: names {module}.{name}, which can run code, expected {self._expected} — do not use this file"
        )
