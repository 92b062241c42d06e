"""Legacy index: PREFIX.idx of Megatron's older `lazy` and `cached` implementations, which have the same format.

Little endian u64 after the magic: version, dtype code, element size, N items, M sizes, C document bounds; then i64
dim_offsets[N + 1], data_offsets[N + 1] in elements, sizes[M], doc_idx[C]. Item i has the shape
sizes[dim_offsets[i]:dim_offsets[i + 1]]; token data has one dimension.

Source: Megatron-LM@v2.5 megatron/data/indexed_dataset.py (format only).
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from ascend_adapt import regular_files
from ascend_adapt.data.token_index import DTYPES, VERSION, FieldCheck, TokenIndex, check_index

MAGIC = b"TNTIDX\x00\x00"
HEADER = struct.Struct("<8s6Q")
LARGEST_SIZE = np.iinfo(np.int32).max


def is_legacy(file: Path) -> bool:
    """Return whether ``file`` has the magic number of a `lazy` or `cached` index."""
    with regular_files.open_binary(file) as stream:
        return stream.read(len(MAGIC)) == MAGIC


def read_legacy_index(file: Path, bin_bytes: int) -> TokenIndex:
    """Return the index in ``file`` as a TokenIndex, validated against ``bin_bytes`` bytes of tokens.

    Raises:
        DataError: a field contradicts the format, the file's length or the token file.
    """
    check = FieldCheck(file)
    length = file.stat().st_size
    check(length >= HEADER.size, "length", f"{length} bytes", f"a header of {HEADER.size} bytes")
    with regular_files.open_binary(file) as stream:
        _, version, code, element_size, items, dimensions, bounds = HEADER.unpack(stream.read(HEADER.size))
        check(version == VERSION, "version", version, VERSION)
        check(code in DTYPES, "dtype code", code, f"one of {sorted(DTYPES)}", "tokens are stored as integers")
        dtype = DTYPES[code]
        check(element_size == dtype.itemsize, "element size", element_size, f"{dtype.itemsize}, for dtype code {code}")
        announced = HEADER.size + 8 * (2 * (items + 1) + dimensions + bounds)
        check(length == announced, "length", f"{length} bytes", f"{announced} bytes according to its header")
        dim_offsets, data_offsets, sizes, doc_idx = (
            np.fromfile(stream, "<i8", count) for count in (items + 1, items + 1, dimensions, bounds)
        )
    check(
        dimensions == items and np.array_equal(dim_offsets, np.arange(items + 1)),
        "dim_offsets",
        "that of items with several dimensions, or with none",
        "one dimension per item",
        "token data is one-dimensional",
    )
    check(((sizes >= 0) & (sizes <= LARGEST_SIZE)).all(), "sizes", "out of range", f"0 to {LARGEST_SIZE}")
    check(data_offsets[0] == 0, "data_offsets[0]", data_offsets[0], 0)
    # Differences of malicious offsets may wrap around, but if all equal the sizes, the last offset is their sum.
    check(
        np.array_equal(np.diff(data_offsets), sizes),
        "data_offsets",
        "not the running sum of sizes",
        "the running sum of sizes",
    )
    index = TokenIndex(
        kind="legacy",
        dtype=dtype,
        sizes=sizes.astype(np.int32),
        pointers=data_offsets[:-1] * dtype.itemsize,
        doc_idx=doc_idx,
        modes=None,
    )
    check_index(index, check, bin_bytes)
    return index
