"""Parses JSON lines into texts, and handles bad lines."""

from __future__ import annotations

import codecs
import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ascend_adapt.data.blocks import TextBlock, long_line
from ascend_adapt.errors import BadLine, DataError, SettingsError, not_installed

UTF8 = "utf-8"


@dataclass
class Documents:
    """The texts of one block. ``texts[k]`` has the texts of the k-th key; every key has the same number of texts."""

    texts: list[list[str]]
    blank: int = 0
    bad: int = 0
    first_bad: list[str] = field(default_factory=list)


def parse_documents(
    block: TextBlock, keys: Sequence[str], skip_bad_lines: bool, clean: Callable[[str], str], encoding: str = UTF8
) -> Documents:
    """Return the texts under ``keys`` of every line that is not blank, each passed through ``clean``.

    Raises:
        BadLine: a line is not a JSON object with a string under every key, and ``skip_bad_lines`` is off.
    """
    if block.too_long:
        return Documents([[] for _ in keys], bad=1, first_bad=[long_line(block.source, block.first_line)])
    loads = fast_loads()
    lines = block.data.split(b"\n")
    if loads is not None and (columns := _columns(lines, keys, loads, encoding)) is not None:
        return Documents(columns if clean is str else [list(map(clean, column)) for column in columns])
    documents = Documents([[] for _ in keys])
    begin = block.first_byte
    for number, line in enumerate(lines, block.first_line):
        first_byte, begin = begin, begin + len(line) + 1
        if not line or line.isspace():
            documents.blank += 1
            continue
        try:
            texts = _texts(_in_utf8(line, encoding, first_byte), keys, loads)
        except BadLine as problem:
            error = f"{block.source}:{number}: {problem} — fix the line or pass --on-bad-line skip"
            if not skip_bad_lines:
                raise BadLine(error) from None
            documents.bad += 1
            if len(documents.first_bad) < 3:
                documents.first_bad.append(error)
            continue
        for column, text in zip(documents.texts, texts, strict=True):
            column.append(clean(text))
    # The empty string after the last line break is not a line.
    documents.blank -= not block.data or block.data.endswith(b"\n")
    return documents


def find_encoding(name: str) -> str:
    """Return Python's name for the encoding of JSON lines.

    Raises:
        SettingsError: the encoding is unknown, or its bytes below 128 are not ASCII, so line breaks cannot be found.
    """
    ascii_bytes = bytes(range(128))
    try:
        found = codecs.lookup(name).name
        is_ascii = ascii_bytes.decode(found) == ascii_bytes.decode("ascii")
    except (LookupError, ValueError):
        is_ascii = False
    if not is_ascii:
        raise SettingsError(
            f"--encoding: {name!r}, expected an encoding that Python knows and that contains ASCII, such as utf-8 or "
            "gb18030 — convert others, such as with `iconv -f utf-16 -t utf-8`"
        )
    return found


def text_cleaner(ftfy: bool) -> Callable[[str], str]:
    """Return the function to apply to each text: ftfy's fix_text, or a function that changes nothing.

    Raises:
        DataError: ftfy is not installed.
    """
    if not ftfy:
        return str
    try:
        repair: Callable[[str], str] = importlib.import_module("ftfy").fix_text
    except ModuleNotFoundError as error:
        raise DataError(not_installed("ftfy", "--ftfy", "data-all")) from error
    return repair


def fast_loads() -> Callable[[bytes], Any] | None:
    """Return orjson's parser, or None if it is not installed."""
    try:
        import orjson
    except ImportError:
        return None
    return orjson.loads


def _columns(
    lines: list[bytes], keys: Sequence[str], loads: Callable[[bytes], Any], encoding: str
) -> list[list[str]] | None:
    """Return all texts of each key, parsed at once, or None if lines have to be parsed one by one."""
    try:
        if encoding != UTF8:
            lines = [line.decode(encoding).encode() for line in lines]
        rows = list(map(loads, lines if lines[-1] else lines[:-1]))
        columns = [[row[key] for row in rows] for key in keys]
    except (ValueError, LookupError, TypeError):
        return None
    return columns if all(set(map(type, column)) <= {str} for column in columns) else None


def _texts(line: bytes, keys: Sequence[str], loads: Callable[[bytes], Any] | None) -> list[str]:
    document = None
    if loads is not None:
        try:
            document = loads(line)
        except ValueError:
            document = None
    by_orjson = document is not None
    if not by_orjson:
        # orjson rejects some input that json accepts, such as NaN. json decides, so results do not depend on orjson.
        document = _strict_loads(line)
    if not isinstance(document, dict):
        raise BadLine(f"a JSON {_json_type(document)}, expected an object with {', '.join(map(repr, keys))}")
    texts = []
    for key in keys:
        if key not in document:
            raise BadLine(f"keys {sorted(document)[:8]}, expected {key!r} among them — see --json-keys")
        text = document[key]
        if not isinstance(text, str):
            raise BadLine(f"{key!r} is a JSON {_json_type(text)}, expected a string")
        if not by_orjson and not text.isascii():
            _refuse_surrogates(text, key)
        texts.append(text)
    return texts


def _in_utf8(line: bytes, encoding: str, first_byte: int) -> bytes:
    try:
        return line.decode(encoding).encode()
    except UnicodeError as error:
        place = error.start + 1 if isinstance(error, UnicodeDecodeError) else 1
        reason = getattr(error, "reason", error)
        raise BadLine(
            f"not {encoding.upper()} ({reason} at byte {place} of the line, {first_byte + place} of the text), "
            "expected JSON in that encoding, see --encoding"
        ) from None


def _strict_loads(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON ({error}), expected one document per line") from None


def _refuse_surrogates(text: str, key: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadLine(f"{key!r} has half of a surrogate pair at {error.start + 1}, expected text") from None


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")
