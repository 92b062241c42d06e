"""Inputs of preprocess, and reading them in blocks from any compression."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sys
import tarfile

import pyarrow
import pytest
from pyarrow import parquet

from ascend_adapt.data import blocks
from ascend_adapt.data.blocks import Position, read_blocks
from ascend_adapt.data.inputs import Input, find_inputs
from ascend_adapt.errors import BadLine, DataError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LINES = b"".join(b'{"text": "%d %s"}\n' % (number, b"x" * (number * 7 % 50)) for number in range(100))
PACKED = {
    ".jsonl": bytes,
    ".json": bytes,
    ".jsonl.gz": gzip.compress,
    ".jsonl.xz": lzma.compress,
    ".jsonl.zst": zstd.compress,
}


def paths(inputs):
    return [source.path for source in inputs]


def test_words_commas_globs_and_empty_items(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.jsonl", "a.jsonl", "with,comma.jsonl", "c.json.gz"):
        (tmp_path / name).touch()
    assert paths(find_inputs(["b.jsonl, a.jsonl,", "", ",c.json.gz", "-"])) == ["b.jsonl", "a.jsonl", "c.json.gz", "-"]
    assert paths(find_inputs(["?.jsonl"])) == ["a.jsonl", "b.jsonl"]
    assert paths(find_inputs(["with,comma.jsonl"])) == ["with,comma.jsonl"]
    assert paths(find_inputs(["a.jsonl", "a.jsonl"])) == ["a.jsonl", "a.jsonl"]


def test_a_folder_is_the_files_in_it(tmp_path):
    for name in ("b.jsonl.zst", "a.jsonl", "current_chunk_incomplete", "notes.txt", "notes.txt.gz"):
        (tmp_path / name).touch()
    assert paths(find_inputs([str(tmp_path)])) == [f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl.zst"]


@pytest.mark.parametrize("name", ["a.foo", "a.txt", "a.txt.gz", "a.tar", "a", "a.jsonl.bz2"])
def test_an_unknown_suffix(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=rf"{name}: unknown suffix, expected one of \.jsonl"):
        find_inputs([str(tmp_path / name)])


@pytest.mark.parametrize("words", [[], [""], [",", " , "]])
def test_no_input(words):
    with pytest.raises(DataError, match="lists no files"):
        find_inputs(words)


@pytest.mark.parametrize("word", ["missing.jsonl", "no*.jsonl", "a.jsonl,missing.jsonl"])
def test_a_missing_input(tmp_path, monkeypatch, word):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(DataError, match="no such file"):
        find_inputs([word])


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("block_bytes", [1, 64, 1000, 1 << 20])
def test_blocks_are_the_file_in_complete_lines(tmp_path, suffix, block_bytes):
    path = tmp_path / f"in{suffix}"
    path.write_bytes(PACKED[suffix](LINES))
    found = list(read_blocks([Input(str(path))], block_bytes, Position()))
    assert b"".join(block.data for block in found) == LINES
    assert all(block.data.endswith(b"\n") for block in found)
    assert found[-1].end == Position(0, len(LINES), 100)
    assert found[-1].bytes_read == path.stat().st_size
    # Every block ends where the next begins; reading can resume there.
    for number, block in enumerate(found[:: max(1, len(found) // 5)]):
        rest = list(read_blocks([Input(str(path))], 100, block.end))
        assert b"".join(part.data for part in rest) == LINES[block.end.offset :], number
        assert not rest or rest[0].first_line == block.end.line + 1


def test_positions_in_the_second_input(tmp_path):
    for name in ("a.jsonl", "b.jsonl.gz"):
        (tmp_path / name).write_bytes(PACKED[name[1:]](LINES))
    inputs = find_inputs([str(tmp_path)])
    found = list(read_blocks(inputs, 500, Position()))
    assert b"".join(block.data for block in found) == LINES * 2
    middle = next(block for block in found if block.end.input == 1 and block.end.line > 20)
    assert b"".join(block.data for block in read_blocks(inputs, 99, middle.end)) == LINES[middle.end.offset :]


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.xz", ".jsonl.zst"])
@pytest.mark.parametrize("damage", ["cut", "not packed", "byte", "tail"])
def test_a_damaged_file_is_an_error(tmp_path, suffix, damage):
    packed = bytearray(PACKED[suffix](LINES))
    if damage == "cut":
        del packed[-20:]
    elif damage == "byte":
        packed[len(packed) // 2] ^= 0xFF
    else:
        packed = bytearray(LINES) if damage == "not packed" else packed + b"garbage"
    path = tmp_path / f"in{suffix}"
    path.write_bytes(packed)
    with pytest.raises(DataError, match=rf"in{suffix}: .* — "):
        list(read_blocks([Input(str(path))], 1000, Position()))


def test_several_frames_are_one_file(tmp_path):
    for suffix in (".jsonl.gz", ".jsonl.xz", ".jsonl.zst"):
        path = tmp_path / f"in{suffix}"
        padding = bytes(100_000) if suffix == ".jsonl.xz" else b""
        path.write_bytes(PACKED[suffix](LINES[:1000]) + padding + PACKED[suffix](LINES[1000:]) + padding)
        assert b"".join(block.data for block in read_blocks([Input(str(path))], 700, Position())) == LINES


def test_a_zstd_window_as_large_as_some_archives_have(tmp_path):
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 28})
    path = tmp_path / "in.jsonl.zst"
    path.write_bytes(compressor.compress(LINES) + compressor.flush())
    with pytest.raises(zstd.ZstdError, match="memory"):
        zstd.ZstdFile(path).read()
    assert b"".join(block.data for block in read_blocks([Input(str(path))], 700, Position())) == LINES


def test_resuming_in_a_file_that_shrank_is_refused(tmp_path):
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(LINES))
    with pytest.raises(DataError, match="before the position to resume from"):
        list(read_blocks([Input(str(path))], 1000, Position(0, len(LINES) + 1, 101)))


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "LONGEST_LINE", 4000)
    path = tmp_path / "in.jsonl"
    path.write_bytes(LINES[:500] + b"x" * 10_000)
    with pytest.raises(DataError, match="no line break in 4000 bytes"):
        list(read_blocks([Input(str(path))], 1000, Position()))


def dat_archive(texts):
    return zstd.compress(b"".join(b"%016d" % len(text) + text for text in (text.encode() for text in texts)))


def test_lm_dataformat_archives(tmp_path):
    texts = ["one\ntwo", "", "drei ü", "x" * 5000]
    (tmp_path / "data_0.dat.zst").write_bytes(dat_archive(texts))
    with tarfile.open(tmp_path / "data_1.jsonl.zst.tar", "w") as archive:
        for name in ("p/a.jsonl.zst", "p/b.jsonl.zst"):
            member = tarfile.TarInfo(name)
            packed = zstd.compress(json.dumps({"text": name, "meta": {}}).encode() + b"\n")
            member.size = len(packed)
            archive.addfile(member, io.BytesIO(packed))
    found = list(read_blocks(find_inputs([str(tmp_path)]), 100, Position()))
    lines = b"".join(block.data for block in found).splitlines()
    assert [json.loads(line)["text"] for line in lines] == [*texts, "p/a.jsonl.zst", "p/b.jsonl.zst"]
    assert str(found[-1].source).endswith("data_1.jsonl.zst.tar/p/b.jsonl.zst")


@pytest.mark.parametrize(
    "content", [b"0000000000000009abc", b"00000000000000", b"-000000000000009abcdefghi", b"9" * 16]
)
def test_a_damaged_dat_archive(tmp_path, content):
    (tmp_path / "in.dat.zst").write_bytes(zstd.compress(content))
    with pytest.raises(DataError, match=r"in\.dat\.zst: "):
        list(read_blocks(find_inputs([str(tmp_path)]), 100, Position()))


def test_a_comma_list_longer_than_a_name_may_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").touch()
    assert len(find_inputs(["a.jsonl," * 60])) == 60
    assert len(find_inputs([f"{tmp_path}/a.jsonl," * 400])) == 400


def test_an_invalid_name_is_an_error():
    with pytest.raises(DataError, match="File name too long, expected a readable file"):
        find_inputs(["a" * 300])


@pytest.mark.parametrize("damage", ["between members", "in a header", "header"])
def test_an_archive_that_would_silently_end_early(tmp_path, damage):
    path = tmp_path / "in.jsonl.zst.tar"
    packed = PACKED[".jsonl.zst"](LINES)
    with tarfile.open(path, "w") as archive:
        for name in ("a.jsonl.zst", "b.jsonl.zst"):
            info = tarfile.TarInfo(name)
            info.size = len(packed)
            archive.addfile(info, io.BytesIO(packed))
    with tarfile.open(path) as archive:
        second = archive.getmembers()[1].offset
    whole = bytearray(path.read_bytes())
    if damage == "header":
        whole[second + 1] ^= 0xFF
    else:
        del whole[second + (0 if damage == "between members" else 100) :]
    path.write_bytes(whole)
    with pytest.raises(DataError, match=rf"in\.jsonl\.zst\.tar: .*byte {second}"):
        find_inputs([str(path)])


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.xz", ".jsonl.zst"])
def test_an_empty_file_is_not_a_compressed_file(tmp_path, suffix):
    path = tmp_path / f"in{suffix}"
    path.touch()
    with pytest.raises(DataError, match="ends early"):
        list(read_blocks([Input(str(path))], 100, Position()))


@pytest.mark.parametrize("block_bytes", [100, 1000])
@pytest.mark.parametrize("tail", [b"", b"\n", b'\n{"text": "after"}\n', b'\n{"text": "after"}'])
def test_a_too_long_line_is_reported_or_skipped(tmp_path, monkeypatch, block_bytes, tail):
    monkeypatch.setattr(blocks, "LONGEST_LINE", 4000)
    path = tmp_path / "in.jsonl"
    before = b"".join(LINES.splitlines(keepends=True)[:6])
    path.write_bytes(before + b"x" * 30_000 + tail)
    with pytest.raises(BadLine, match=rf"{path}:7: no line break in 4000 bytes, .* pass --on-bad-line skip"):
        list(read_blocks([Input(str(path))], block_bytes, Position()))
    found = list(read_blocks([Input(str(path))], block_bytes, Position(), skip_long_lines=True))
    assert [block.too_long for block in found if block.too_long] == [30_000 + len(tail[:1])]
    assert b"".join(block.data for block in found) == before + tail[1:]
    for block in found:  # every place can be resumed from
        rest = list(read_blocks([Input(str(path))], block_bytes, block.end, skip_long_lines=True))
        assert [*rest[-1:]] == [*found[found.index(block) + 1 :][-1:]]


def parquet_file(path, **columns):
    parquet.write_table(pyarrow.table(columns), path, row_group_size=70)
    return path


def test_parquet_is_lines_of_its_columns(tmp_path):
    texts = [f"text {number} 字 \n" for number in range(600)]
    path = parquet_file(tmp_path / "in.parquet", text=texts, other=list(range(600)), title=[None, *texts[1:]])
    (source,) = find_inputs([str(tmp_path)], ("text", "title"))
    found = list(read_blocks([source], 1000, Position()))
    rows = [json.loads(line) for block in found for line in block.data.splitlines()]
    assert [row["text"] for row in rows] == texts
    assert rows[0] == {"text": texts[0], "title": None}
    assert found[-1].end.line == 600
    middle = found[len(found) // 2].end
    assert list(read_blocks([source], 1000, middle))[-1].end == found[-1].end
    assert path.stat().st_size == source.size


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            ("text", "missing"),
            r"in\.parquet: no column 'missing', column 'text' of type int64, expected text col",
        ),
        (("tags",), r"column 'tags' of type list<"),
    ],
)
def test_parquet_without_text(tmp_path, keys, message):
    path = parquet_file(tmp_path / "in.parquet", text=[1, 2], tags=[["a"], ["b"]])
    with pytest.raises(DataError, match=message):
        list(read_blocks(find_inputs([str(path)], keys), 1000, Position()))


def test_parquet_that_is_cut(tmp_path):
    path = parquet_file(tmp_path / "in.parquet", text=["a"] * 500)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"in\.parquet: cannot be unpacked"):
        list(read_blocks(find_inputs([str(path)]), 1000, Position()))
