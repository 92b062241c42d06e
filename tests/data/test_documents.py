"""JSON lines to texts: which lines are documents, with and without orjson."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_adapt.data import documents
from ascend_adapt.data.blocks import Position, TextBlock
from ascend_adapt.data.documents import find_encoding, parse_documents
from ascend_adapt.data.inputs import Input
from ascend_adapt.errors import BadLine, SettingsError

BAD = {
    b'{"text": "cut': "not JSON",
    b"\xff\xfe": "not UTF-8",
    b'{"text": "\xff"}': "not UTF-8",
    b'["text"]': "array, expected an object",
    b'"text"': "string, expected an object",
    b"null": "null, expected an object",
    b'{"texts": "a"}': "expected 'text' among them",
    b'{"text": null}': "'text' is a JSON null",
    b'{"text": ["a", "b"]}': "'text' is a JSON array",
    b'{"text": "\\ud800"}': "half of a surrogate pair",
    b'{"text": "a"} {"text": "b"}': "not JSON",
    b"[" * 100_000: "not JSON",
    b"\xef\xbb\xbf{}": "not JSON",
}


def parse(data, keys=("text",), skip=False, first_line=1, first_byte=0, encoding="utf-8"):
    block = TextBlock(Input("in.jsonl"), first_line, data, Position(0, first_byte + len(data)), 0)
    return parse_documents(block, keys, skip, str, encoding)


@pytest.fixture(params=["orjson", "json"], autouse=True)
def parser(request, monkeypatch):
    if request.param == "json":
        monkeypatch.setattr(documents, "fast_loads", lambda: None)


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_reported(line):
    with pytest.raises(BadLine, match=rf"^in\.jsonl:8: .*{BAD[line]}.* — fix"):
        parse(b'{"text": "a"}\n' + line + b"\n", first_line=7)


def test_bad_and_blank_lines_are_counted():
    found = parse(b'{"text": "a"}\n\n \t\r\n' + b"\n".join(BAD) + b'\n{"text": "b"}', skip=True)
    assert (found.texts, found.blank, found.bad) == ([["a", "b"]], 2, len(BAD))
    assert found.first_bad[0].startswith("in.jsonl:4: ")
    assert len(found.first_bad) == 3


@pytest.mark.parametrize(("data", "blank"), [(b"", 0), (b"\n", 1), (b"\n\n", 2), (b" ", 1), (b'{"text": ""}\n\n', 1)])
def test_text_after_the_last_line_break_is_not_a_line(data, blank):
    assert parse(data).blank == blank


def test_a_line_without_one_of_several_keys_is_bad():
    found = parse(b'{"a": "1", "b": "2"}\n{"a": "3"}\n{"a": "4", "b": 5}\n', keys=("a", "b"), skip=True)
    assert (found.texts, found.bad) == ([["1"], ["2"]], 2)


def test_input_that_only_json_accepts_is_a_document():
    assert parse(b'{"text": "a", "n": NaN}\r\n').texts == [["a"]]


def test_lines_in_another_encoding():
    rows = [{"text": "汉字 \\ |"}, {"text": "é" * 3}]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("gb18030")
    assert parse(lines, encoding="gb18030").texts == [["汉字 \\ |", "ééé"]]
    bad = lines + b'{"text": "\xff"}\n'
    message = (
        rf"in\.jsonl:3: not GB18030 \(.* at byte 11 of the line, {1000 + len(lines) + 11} of the text\), .*--encoding"
    )
    with pytest.raises(BadLine, match=message):
        parse(bad, encoding="gb18030", first_byte=1000)
    assert parse(bad, encoding="gb18030", skip=True).bad == 1


@pytest.mark.parametrize("name", ["utf-16", "utf-7", "cp037", "rot13", "nope"])
def test_an_encoding_whose_line_breaks_cannot_be_found(name):
    with pytest.raises(SettingsError, match=f"--encoding: '{name}', expected"):
        find_encoding(name)


def test_aliases_of_encodings():
    assert [find_encoding(name) for name in ("UTF8", "gbk", "utf-8-sig", "latin1")] == [
        "utf-8",
        "gbk",
        "utf-8-sig",
        "iso8859-1",
    ]


@given(st.text())
def test_every_text_round_trips(text):
    assert parse(json.dumps({"text": text}).encode() + b"\n").texts == [[text]]
    assert parse(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n").texts == [[text]]
