"""Token files in Megatron's mmap format: PREFIX.bin holds the tokens, PREFIX.idx where each document begins.

PREFIX.idx, little endian: magic, u64 version, u8 dtype code, u64 S sequences, u64 D document bounds, then
i32 sizes[S] in tokens, i64 offsets[S] in bytes, i64 document_index[D]. Files of a preprocess tool have one
sequence per document.
"""

import os
import struct
from pathlib import Path

import numpy as np

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")

# Codes 6 and 7 are floating-point types, which token data never has; Megatron and GPT-NeoX disagree on their order.
DTYPES = {code: np.dtype(name) for code, name in {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}.items()}


class IndexedDatasetError(ValueError):
    """A token file that violates the format."""


def bin_path(prefix: str | os.PathLike) -> Path:
    """The path of the tokens of `prefix`."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | os.PathLike) -> Path:
    """The path of the index of `prefix`."""
    return Path(f"{prefix}.idx")


class IndexedDataset:
    """The documents of one .bin/.idx pair, mapped into memory and checked when opened."""

    def __init__(self, prefix: str | os.PathLike):
        bin_file, idx_file = bin_path(prefix), idx_path(prefix)
        for file in (idx_file, bin_file):
            if not file.is_file():
                raise IndexedDatasetError(f"{file}: no such file, expected PREFIX.idx and .bin — check the prefix")
        self.dtype, self.sizes, self.offsets, self.document_index = _read_index(idx_file)

        expected_bytes = int(self.sizes.sum(dtype=np.int64)) * self.dtype.itemsize
        if bin_file.stat().st_size != expected_bytes:
            raise IndexedDatasetError(
                f"{bin_file}: {bin_file.stat().st_size} bytes, expected {expected_bytes} by the sizes in "
                f"{idx_file.name} — the copy is incomplete, or the files belong to different pairs"
            )
        self.tokens = np.memmap(bin_file, dtype=self.dtype, mode="r")

    def __len__(self) -> int:
        return len(self.document_index) - 1

    def __getitem__(self, document: int) -> np.ndarray:
        begin, end = self.token_range(range(len(self))[document], range(len(self))[document] + 1)
        return self.tokens[begin:end]

    def token_range(self, first: int, last: int) -> tuple[int, int]:
        """Positions in `tokens` where documents [first, last) begin and end."""
        ends = np.append(self.offsets // self.dtype.itemsize, len(self.tokens))
        return int(ends[self.document_index[first]]), int(ends[self.document_index[last]])


def _read_index(file: Path) -> tuple[np.dtype, np.ndarray, np.ndarray, np.ndarray]:
    """The dtype, sizes [S], offsets [S] and document_index [D] that `file` holds."""

    def check(correct: bool, field: str, observed: object, expected: object, next_step: str) -> None:
        if not correct:
            raise IndexedDatasetError(f"{file}: {field} is {observed}, expected {expected} — {next_step}")

    broken = "the file is damaged, create it again"
    with open(file, "rb") as stream:
        header = stream.read(HEADER.size)
        check(len(header) == HEADER.size, "header", f"{len(header)} bytes", f"{HEADER.size} bytes", broken)
        magic, version, code, sequences, bounds = HEADER.unpack(header)
        check(magic == MAGIC, "magic", magic, MAGIC, "only the mmap format is read; convert lazy and cached files")
        check(version == VERSION, "version", version, VERSION, "create the file with a Megatron that writes version 1")
        check(code in DTYPES, "dtype code", code, f"one of {sorted(DTYPES)}", "tokens are stored as integers")
        check(sequences > 0, "sequence count", sequences, "at least 1", "the input had no documents")
        expected_bytes = HEADER.size + 12 * sequences + 8 * bounds
        check(
            file.stat().st_size == expected_bytes,
            "file size",
            file.stat().st_size,
            expected_bytes,
            f"{sequences} sequences and {bounds} document bounds are announced; {broken}",
        )
        sizes = np.fromfile(stream, "<i4", sequences)
        offsets = np.fromfile(stream, "<i8", sequences)
        document_index = np.fromfile(stream, "<i8", bounds)

    dtype = DTYPES[code]
    check(sizes.min() >= 0, "smallest of sizes", sizes.min(), "0 or more", broken)
    contiguous = np.cumsum(sizes, dtype=np.int64) * dtype.itemsize
    check(
        offsets[0] == 0 and np.array_equal(offsets[1:], contiguous[:-1]),
        "offsets",
        "not the running sum of sizes",
        "consecutive documents from 0",
        broken,
    )
    check(
        bounds >= 2 and document_index[0] == 0 and document_index[-1] == sequences,
        "document_index",
        document_index[[0, -1]].tolist() if bounds else [],
        f"from 0 to {sequences}",
        broken,
    )
    check(bool((np.diff(document_index) >= 0).all()), "document_index", "falling", "rising", broken)
    return dtype, sizes, offsets, document_index
