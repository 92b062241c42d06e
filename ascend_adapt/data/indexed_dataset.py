"""Indexed dataset: the token files PREFIX.bin and PREFIX.idx as a sequence of token arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ascend_adapt.data.legacy_index import is_legacy, read_legacy_index
from ascend_adapt.data.mapping import map_array
from ascend_adapt.data.token_index import TokenIndex, read_index, sequence_pointers
from ascend_adapt.errors import DataError, system_error

__all__ = ["IndexedDataset", "bin_path", "idx_path", "sequence_pointers", "token_dtype"]


def bin_path(prefix: str | os.PathLike[str]) -> Path:
    """Return the path of the .bin file of ``prefix``, which has the tokens."""
    return Path(f"{os.fspath(prefix)}.bin")


def idx_path(prefix: str | os.PathLike[str]) -> Path:
    """Return the path of the .idx file of ``prefix``."""
    return Path(f"{os.fspath(prefix)}.idx")


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the dtype of stored tokens: two bytes for an unpadded vocabulary below 65500, else four.

    Source: Megatron-LM@v2.5 megatron/data/indexed_dataset.py.
    """
    return np.dtype("<u2" if vocab_size < 65500 else "<i4")


class IndexedDataset:
    """The sequences of one .bin/.idx pair, memory-mapped and validated when opened. ``[i]`` is a read-only array.

    ``sizes``, int32 [S], has the number of tokens of each sequence. ``doc_idx`` is int64 [D]: document d consists of
    the sequences doc_idx[d] to doc_idx[d + 1]. ``preprocess`` writes one sequence per document. The formats mmap,
    multimodal, lazy and cached can be read.

    Raises:
        DataError: a file is missing or its fields are inconsistent; the message names the file and the field.
    """

    def __init__(self, prefix: str | os.PathLike[str], *, multimodal: bool | None = None):
        self.prefix = os.fspath(prefix)
        self._multimodal = multimodal
        for file in (idx_path(prefix), bin_path(prefix)):
            if not os.path.isfile(file):
                raise DataError(f"{file}: no such file, expected PREFIX.idx and PREFIX.bin — check the prefix")
            if not os.access(file, os.R_OK):
                raise DataError(f"{file}: not readable, expected a readable file — check its permissions")
        try:
            bin_bytes = bin_path(prefix).stat().st_size
            self.index = _read(idx_path(prefix), bin_bytes, multimodal)
            self.tokens = map_array(bin_path(prefix), self.index.dtype)
        except OSError as error:
            raise DataError(
                f"{error.filename or prefix}: {system_error(error)}, expected readable token files — check that file"
            ) from error
        self.dtype = self.index.dtype
        self.sizes = self.index.sizes
        self.pointers = self.index.pointers
        self.doc_idx = self.index.doc_idx
        self.modes = self.index.modes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, sequence: int) -> NDArray[Any]:
        return self.get(sequence)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self.get(sequence) for sequence in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        # DataLoader workers map the files again, so tokens are never pickled.
        return _reopen, (self.prefix, self._multimodal)

    def get(self, sequence: int, offset: int = 0, length: int | None = None) -> NDArray[Any]:
        """Return ``length`` tokens of one sequence from ``offset`` on, by default all the remaining tokens.

        Raises:
            IndexError: the sequence or the tokens are out of range.
        """
        if not -len(self) <= sequence < len(self):
            raise IndexError(f"{self.prefix}: sequence {sequence}, expected a number below {len(self)}")
        size = int(self.sizes[sequence])
        length = size - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > size:
            raise IndexError(
                f"{self.prefix}: tokens {offset} to {offset + length} of sequence {sequence}, expected within {size}"
            )
        begin = int(self.pointers[sequence]) // self.dtype.itemsize + int(offset)
        return np.asarray(self.tokens[begin : begin + int(length)])


def _read(file: Path, bin_bytes: int, multimodal: bool | None) -> TokenIndex:
    return read_legacy_index(file, bin_bytes) if is_legacy(file) else read_index(file, bin_bytes, multimodal)


def _reopen(prefix: str, multimodal: bool | None) -> IndexedDataset:
    return IndexedDataset(prefix, multimodal=multimodal)
