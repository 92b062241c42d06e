"""Randomly changed files: refused, or read within their bounds; no output after an error.

A hundred thousand of these were run once, in processes of their own; ASCEND_ADAPT_FUZZ sets how many are run here.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import struct
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_adapt.data import IndexedDataset
from ascend_adapt.data.preprocessing import PreprocessRequest, preprocess
from ascend_adapt.data.tokenizer import TokenizerRequest
from ascend_adapt.errors import AdaptError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FUZZ = settings(
    max_examples=int(os.environ.get("ASCEND_ADAPT_FUZZ", "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# Where, as a part of the length, and what is written, put in or taken out there.
WRITTEN = st.one_of(
    st.binary(min_size=1, max_size=9),
    st.sampled_from([-1, 0, 1, 2**31, 2**62, -(2**63), 2**63 - 1]).map(lambda number: struct.pack("<q", number)),
)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["write", "insert", "delete", "cut"]), st.floats(0, 1, exclude_max=True), WRITTEN),
    min_size=1,
    max_size=4,
)
DOCUMENTS = [[1, 2, 3], [], [4], [5] * 9, [65535, 0]]
LINES = b"".join(
    json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in ("one", "", "zwei ü\n" * 9)
)
PACKED = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.xz": lzma.compress, "jsonl.zst": zstd.compress}


def changed(content, changes):
    content = bytearray(content)
    for how, where, written in changes:
        place = int(where * len(content))
        if how == "cut":
            del content[place:]
        else:
            end = {"write": place + len(written), "insert": place, "delete": place + len(written)}[how]
            content[place:end] = b"" if how == "delete" else written
    return bytes(content)


def legacy_index(documents):
    sizes = [len(document) for document in documents]
    arrays = (range(len(sizes) + 1), np.cumsum([0, *sizes]), sizes, range(len(sizes) + 1))
    header = struct.pack("<8s6Q", b"TNTIDX\0\0", 1, 8, 2, len(sizes), len(sizes), len(sizes) + 1)
    return header + b"".join(np.asarray(array, "<i8").tobytes() for array in arrays)


@pytest.mark.parametrize("kind", ["mmap", "modes", "legacy"])
@FUZZ
@given(index_changes=CHANGES, token_changes=st.one_of(st.just([]), CHANGES))
def test_token_files(write_tokens, kind, index_changes, token_changes):
    modes = np.zeros(len(DOCUMENTS), np.int8) if kind == "modes" else None
    prefix = write_tokens(DOCUMENTS, modes=modes)
    index, tokens = prefix.with_suffix(".idx"), prefix.with_suffix(".bin")
    if kind == "legacy":
        index.write_bytes(legacy_index(DOCUMENTS))
        assert [sequence.tolist() for sequence in IndexedDataset(prefix)] == DOCUMENTS
    index.write_bytes(changed(index.read_bytes(), index_changes))
    tokens.write_bytes(changed(tokens.read_bytes(), token_changes))
    try:
        data = IndexedDataset(prefix)
    except AdaptError:
        return
    assert b"".join(sequence.tobytes() for sequence in data) == tokens.read_bytes()
    assert (data.doc_idx[0], data.doc_idx[-1]) == (0, len(data))
    assert data.modes is None or len(data.modes) == len(data)


@pytest.mark.parametrize("suffix", PACKED)
@FUZZ
@given(changes=CHANGES, packed_first=st.booleans(), skip=st.booleans())
def test_text_files(tmp_path, suffix, changes, packed_first, skip):
    pack = PACKED[suffix]
    path, out = tmp_path / f"in.{suffix}", tmp_path / "out"
    path.write_bytes(changed(pack(LINES), changes) if packed_first else pack(changed(LINES, changes)))
    tokenizer = TokenizerRequest("CharLevelTokenizer")
    try:
        counts = preprocess(PreprocessRequest((str(path),), str(out / "o"), tokenizer, skip_bad_lines=skip))
    except AdaptError:
        assert not out.exists() or list(out.iterdir()) == []
        return
    assert len(IndexedDataset(out / "o_text_document")) == counts.written["text"] > 0
    assert sorted(file.name for file in out.iterdir()) == ["o_text_document.bin", "o_text_document.idx"]
    for file in out.iterdir():
        file.unlink()
