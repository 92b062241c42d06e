"""Token index: PREFIX.idx in the mmap format, the sequences and documents of PREFIX.bin.

Little endian: magic, u64 version, u8 dtype code, u64 S sequences, u64 D document bounds, i32 sizes[S] in tokens, i64
pointers[S] in bytes, i64 doc_idx[D], and in Megatron-core's multimodal files i8 modes[S], which the header does not
mention.

Source: Megatron-LM@core_v0.9.0 megatron/core/datasets/indexed_dataset.py (format only).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ascend_adapt import regular_files
from ascend_adapt.data.mapping import map_array
from ascend_adapt.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")

# Codes 6 and 7 are left out: they are floating-point dtypes, on which Megatron and GPT-NeoX disagree, and never tokens.
DTYPES = {code: np.dtype(name) for code, name in {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}.items()}
CODES = {dtype: code for code, dtype in DTYPES.items()}

# Number of sequences processed at a time, because an array may be larger than memory.
CHUNK = 1 << 20

DAMAGED = "the file is damaged or incomplete, create it again"


@dataclass(frozen=True)
class TokenIndex:
    """An .idx file: sizes int32 [S] in tokens, pointers int64 [S] in bytes, doc_idx int64 [D], and modes int8 [S]."""

    kind: str
    dtype: np.dtype[Any]
    sizes: NDArray[np.int32]
    pointers: NDArray[np.int64]
    doc_idx: NDArray[np.int64]
    modes: NDArray[np.int8] | None


class FieldCheck:
    """Checks fields of an index file; raises DataError with the file, the field, the observed and expected value."""

    def __init__(self, file: Path):
        self.file = file

    def __call__(self, correct: Any, field: str, observed: object, expected: object, then: str = DAMAGED) -> None:
        if not correct:
            raise DataError(f"{self.file}: {field} is {observed}, expected {expected} — {then}")


def read_index(file: Path, bin_bytes: int, multimodal: bool | None = None) -> TokenIndex:
    """Return the index in ``file``, mapped into memory, validated against a token file of ``bin_bytes`` bytes.

    Args:
        multimodal: whether modes follow the document bounds; None to infer it from the length of the file.

    Raises:
        DataError: a field contradicts the format, the file's length or the token file.
    """
    check = FieldCheck(file)
    length = file.stat().st_size
    check(length >= HEADER.size, "length", f"{length} bytes", f"a header of {HEADER.size} bytes")
    with regular_files.open_binary(file) as stream:
        magic, version, code, sequences, bounds = HEADER.unpack(stream.read(HEADER.size))
    check(magic == MAGIC, "magic", magic, MAGIC, "is it a Megatron .idx file?")
    check(version == VERSION, "version", version, VERSION, "write the file with a Megatron that uses version 1")
    check(code in DTYPES, "dtype code", code, f"one of {sorted(DTYPES)}", "tokens are stored as integers")
    plain = HEADER.size + 12 * sequences + 8 * bounds
    if multimodal is None:
        multimodal = sequences > 0 and length == plain + sequences
    announced = plain + (sequences if multimodal else 0)
    check(
        length == announced,
        "length",
        f"{length} bytes",
        f"{announced} bytes for {sequences} sequences and {bounds} document bounds",
    )
    content = map_array(file)

    def array(dtype: str, count: int, offset: int) -> NDArray[Any]:
        return np.frombuffer(content, dtype, count, offset)

    index = TokenIndex(
        kind="mmap",
        dtype=DTYPES[code],
        sizes=array("<i4", sequences, HEADER.size),
        pointers=array("<i8", sequences, HEADER.size + 4 * sequences),
        doc_idx=array("<i8", bounds, HEADER.size + 12 * sequences),
        modes=array("i1", sequences, plain) if multimodal else None,
    )
    check_index(index, check, bin_bytes)
    return index


def check_index(index: TokenIndex, check: FieldCheck, bin_bytes: int) -> None:
    """Raise DataError unless the concatenated sequences fill ``bin_bytes`` bytes and form complete documents."""
    sequences, bounds = len(index.sizes), len(index.doc_idx)
    position = 0
    for begin in range(0, sequences, CHUNK):
        sizes = index.sizes[begin : begin + CHUNK]
        check(sizes.min() >= 0, "sizes", f"{sizes.min()} at its smallest", "0 or more")
        pointers = index.pointers[begin : begin + CHUNK]
        expected = position + sequence_pointers(sizes, index.dtype.itemsize)
        wrong = np.flatnonzero(pointers != expected)
        if len(wrong):
            first = int(wrong[0])
            check(
                False, f"pointers[{begin + first}]", pointers[first], f"{expected[first]}, the sum of sizes before it"
            )
        position = int(expected[-1]) + int(sizes[-1]) * index.dtype.itemsize
        # This also keeps the sum within 64 bits, because a chunk adds less than 2**55.
        check(
            position <= bin_bytes, "sizes", f"{position} bytes of tokens or more", f"the {bin_bytes} of the .bin file"
        )
    check(position == bin_bytes, "sizes", f"{position} bytes of tokens", f"the {bin_bytes} of the .bin file")
    check(bounds > 0, "doc_idx", "empty", "at least its leading 0")
    check(index.doc_idx[0] == 0, "doc_idx[0]", index.doc_idx[0], 0)
    check(index.doc_idx[-1] == sequences, "the last of doc_idx", index.doc_idx[-1], f"{sequences}, the sequences")
    for begin in range(0, bounds, CHUNK):
        part = index.doc_idx[begin : begin + CHUNK + 1]
        check((part[1:] >= part[:-1]).all(), "doc_idx", "falling", "rising")


def sequence_pointers(sizes: Any, itemsize: int) -> NDArray[np.int64]:
    """Return the byte offset at which each sequence begins, int64 [S], computed from the sizes in tokens."""
    ends = np.cumsum(np.asarray(sizes, dtype=np.int64), dtype=np.int64)
    pointers = np.zeros(len(ends), dtype=np.int64)
    pointers[1:] = ends[:-1]
    return pointers * itemsize


def write_index(
    stream: BinaryIO,
    dtype: np.dtype[Any],
    sizes: NDArray[np.int32],
    doc_idx: NDArray[np.int64] | None = None,
    modes: NDArray[np.int8] | None = None,
) -> None:
    """Write an .idx file in chunks. Without ``doc_idx``, every sequence is a document."""
    bounds = len(sizes) + 1 if doc_idx is None else len(doc_idx)
    stream.write(HEADER.pack(MAGIC, VERSION, CODES[dtype], len(sizes), bounds))
    for part in _parts(sizes):
        stream.write(part.astype("<i4", copy=False).tobytes())
    position = 0
    for part in _parts(sizes):
        stream.write((position + sequence_pointers(part, dtype.itemsize)).astype("<i8", copy=False).tobytes())
        position += int(part.sum(dtype=np.int64)) * dtype.itemsize
    for begin in range(0, bounds, CHUNK):
        end = min(begin + CHUNK, bounds)
        part = np.arange(begin, end) if doc_idx is None else doc_idx[begin:end]
        stream.write(part.astype("<i8", copy=False).tobytes())
    if modes is not None:
        stream.write(modes.astype("i1", copy=False).tobytes())


def _parts(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (array[begin : begin + CHUNK] for begin in range(0, len(array), CHUNK))
