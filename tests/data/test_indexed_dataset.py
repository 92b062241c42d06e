"""Token files: reading valid ones and refusing damaged ones."""

from __future__ import annotations

import os
import pickle
import struct

import numpy as np
import pytest

from ascend_adapt.data import IndexedDataset, sequence_pointers, token_dtype
from ascend_adapt.errors import DataError

DOCUMENTS = [[1, 2, 3], [4], [], [5, 6]]


def test_sequences_round_trip(write_tokens):
    data = IndexedDataset(write_tokens(DOCUMENTS))
    assert [sequence.tolist() for sequence in data] == DOCUMENTS
    assert data[-1].tolist() == [5, 6]
    assert data.sizes.tolist() == [3, 1, 0, 2]
    assert data.doc_idx.tolist() == [0, 1, 2, 3, 4]
    assert data.get(0, 1, 2).tolist() == [2, 3]
    assert data.get(0, 1).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("sequence", "offset", "length"), [(4, 0, None), (-5, 0, None), (0, 2, 2), (0, -1, 1), (0, 4, None), (0, 0, -1)]
)
def test_nothing_outside_a_sequence_is_read(write_tokens, sequence, offset, length):
    with pytest.raises(IndexError):
        IndexedDataset(write_tokens(DOCUMENTS)).get(sequence, offset, length)


def test_tokens_cannot_be_changed(write_tokens):
    with pytest.raises(ValueError):
        IndexedDataset(write_tokens(DOCUMENTS))[0][0] = 9


def test_a_pickled_dataset_carries_no_tokens(write_tokens):
    data = IndexedDataset(write_tokens([[7] * 10_000]))
    pickled = pickle.dumps(data)
    assert len(pickled) < 1000
    assert pickle.loads(pickled)[0].tolist() == [7] * 10_000


def test_offsets_need_64_bits():
    largest = np.full(5, 2**31 - 1, dtype=np.int32)
    assert sequence_pointers(largest, 4).tolist() == [number * (2**31 - 1) * 4 for number in range(5)]
    assert sequence_pointers([], 2).tolist() == []
    assert sequence_pointers([3, 0, 1], np.int16(2)).dtype == np.int64


@pytest.mark.parametrize(("vocabulary", "code"), [(65499, 8), (65500, 4), (50257, 8), (250_000, 4)])
def test_the_type_follows_the_vocabulary(write_tokens, vocabulary, code):
    prefix = write_tokens(DOCUMENTS, dtype=token_dtype(vocabulary))
    assert prefix.with_suffix(".idx").read_bytes()[17] == code


def test_the_bytes_of_the_format(write_tokens):
    prefix = write_tokens([[1, 2, 3], [4]])
    assert prefix.with_suffix(".bin").read_bytes().hex(" ") == "01 00 02 00 03 00 04 00"
    index = prefix.with_suffix(".idx").read_bytes()
    assert index == struct.pack("<9sQBQQ2i2q3q", b"MMIDIDX\0\0", 1, 8, 2, 3, 3, 1, 0, 6, 0, 1, 2)
    assert len(index) == 82


def test_several_sequences_a_document_and_modes(write_tokens):
    data = IndexedDataset(write_tokens(DOCUMENTS, doc_idx=np.array([0, 3, 4]), modes=np.array([0, 1, 0, 1], np.int8)))
    assert data.doc_idx.tolist() == [0, 3, 4]
    assert data.modes.tolist() == [0, 1, 0, 1]


def test_missing_modes(write_tokens):
    with pytest.raises(DataError, match="length is 122 bytes, expected 126"):
        IndexedDataset(write_tokens(DOCUMENTS, doc_idx=np.arange(5)), multimodal=True)


def legacy(documents, dtype="<i4", code=4, **changes):
    sizes = [len(document) for document in documents]
    header = {"magic": b"TNTIDX\0\0", "version": 1, "code": code, "element": np.dtype(dtype).itemsize}
    header |= {"items": len(sizes), "dimensions": len(sizes), "bounds": len(sizes) + 1}
    arrays = {
        "dim_offsets": np.arange(len(sizes) + 1),
        "data_offsets": np.cumsum([0, *sizes]),
        "sizes": np.array(sizes),
        "doc_idx": np.arange(len(sizes) + 1),
    }
    header |= {name: value for name, value in changes.items() if name in header}
    arrays |= {name: np.array(value) for name, value in changes.items() if name in arrays}
    return struct.pack("<8s6Q", *header.values()) + b"".join(array.astype("<i8").tobytes() for array in arrays.values())


def write_legacy(tmp_path, documents, **changes):
    flat = np.array([token for document in documents for token in document], "<i4")
    (tmp_path / "old.bin").write_bytes(flat.tobytes())
    (tmp_path / "old.idx").write_bytes(legacy(documents, **changes))
    return tmp_path / "old"


def test_lazy_and_cached_files_are_read(tmp_path):
    data = IndexedDataset(write_legacy(tmp_path, DOCUMENTS))
    assert [sequence.tolist() for sequence in data] == DOCUMENTS
    assert data.index.kind == "legacy"
    assert (data.dtype, data.sizes.dtype, data.doc_idx.tolist()) == (np.int32, np.int32, [0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"version": 2}, "version"),
        ({"code": 6}, "dtype code"),
        ({"element": 8}, "element size"),
        ({"items": 5}, "length"),
        ({"items": 2**61, "dimensions": 2**61}, "length"),
        ({"dim_offsets": [0, 1, 1, 3, 4]}, "dim_offsets"),
        ({"data_offsets": [0, 3, 4, 4, 7]}, "data_offsets"),
        ({"data_offsets": [1, 4, 5, 5, 7]}, "data_offsets"),
        ({"sizes": [3, 1, -1, 2]}, "sizes"),
        ({"sizes": [3, 1, 2**31, 2]}, "sizes"),
        ({"doc_idx": [0, 1, 2, 3, 5]}, "doc_idx"),
    ],
)
def test_a_wrong_field_of_a_lazy_file_is_named(tmp_path, changes, field):
    with pytest.raises(DataError, match=rf"old\.idx: .*{field}.* expected .* — "):
        IndexedDataset(write_legacy(tmp_path, DOCUMENTS, **changes))


# Of DOCUMENTS: header 34, sizes at 34, pointers at 50, doc_idx at 82, 122 bytes in all.
@pytest.mark.parametrize(
    ("offset", "value", "field"),
    [
        (0, b"X", "magic"),
        (9, b"\x02", "version"),
        (17, b"\x06", "dtype code"),
        (17, b"\x04", r"pointers\[1\]"),
        (18, b"\x05", "length"),
        (25, b"\x80", "length"),
        (26, b"\x06", "length"),
        (34, b"\x04", r"pointers\[1\]"),
        (37, b"\x80", "sizes"),
        (46, b"\x03", "sizes"),
        (46, b"\x01", "sizes"),
        (50, b"\x02", r"pointers\[0\]"),
        (65, b"\x80", r"pointers\[1\]"),
        (82, b"\x01", r"doc_idx\[0\]"),
        (90, b"\x09", "doc_idx"),
        (114, b"\x03", "last of doc_idx"),
    ],
)
def test_a_wrong_field_is_named(write_tokens, offset, value, field):
    prefix = write_tokens(DOCUMENTS)
    index = bytearray(prefix.with_suffix(".idx").read_bytes())
    index[offset : offset + 1] = value
    prefix.with_suffix(".idx").write_bytes(index)
    with pytest.raises(DataError, match=rf"tokens\.idx: .*{field}.* expected .* — "):
        IndexedDataset(prefix)


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
@pytest.mark.parametrize("change", [-1, +1])
def test_a_file_of_another_length_is_refused(write_tokens, suffix, change):
    file = write_tokens(DOCUMENTS).with_suffix(suffix)
    content = file.read_bytes()
    file.write_bytes(content[:change] if change < 0 else content + b"\0")
    with pytest.raises(DataError, match=r"tokens\.idx: (length|sizes) is .* expected"):
        IndexedDataset(file.with_suffix(""))


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_missing_file_is_named(write_tokens, suffix):
    prefix = write_tokens(DOCUMENTS)
    prefix.with_suffix(suffix).unlink()
    with pytest.raises(DataError, match=rf"tokens\{suffix}: no such file"):
        IndexedDataset(prefix)


def test_an_empty_dataset(write_tokens):
    data = IndexedDataset(write_tokens([]))
    assert len(data) == 0
    assert list(data) == []


def test_more_sequences_than_are_checked_at_once(write_tokens, monkeypatch):
    from ascend_adapt.data import token_index

    monkeypatch.setattr(token_index, "CHUNK", 3)
    documents = [[number] * (number % 4) for number in range(20)]
    prefix = write_tokens(documents)
    assert [sequence.tolist() for sequence in IndexedDataset(prefix)] == documents
    index = bytearray(prefix.with_suffix(".idx").read_bytes())
    index[34 + 4 * 20 + 8 * 11] ^= 1
    prefix.with_suffix(".idx").write_bytes(index)
    with pytest.raises(DataError, match=r"pointers\[11\]"):
        IndexedDataset(prefix)


def test_an_unreadable_file(write_tokens, monkeypatch):
    prefix = write_tokens([[1]])
    monkeypatch.setattr(os, "access", lambda file, mode: False)  # root may read all files
    with pytest.raises(DataError, match=r"tokens\.idx: not readable"):
        IndexedDataset(prefix)
