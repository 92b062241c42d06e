"""Error codes of CANN, HCCL and torch_npu in a log, and the path of the device log."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ascend_adapt.problems.log_text import LogText

DEVICE_LOG = (
    "device log: $ASCEND_PROCESS_LOG_PATH, else ~/ascend/log/debug/plog/plog-<pid>_*.log on the host of that rank"
)
_NUMBER = r"(?:error code(?: is)? ?:?|errno:|runtime result = |ErrCode=|failed ?: ?)\s*(?P<number>\d{6})\b"
_LETTERS = r"\b(?P<letters>E[A-Z]\d{4}|E\d{5}|ERR0\d{4})\b"
_CODE = re.compile(f"{_NUMBER}|{_LETTERS}")


@dataclass(frozen=True)
class ErrorCode:
    """An error code in a log: its meaning ("" if unknown), its first line, and the number of lines that have it."""

    code: str
    meaning: str
    line: int
    count: int


@functools.cache
def meanings() -> Mapping[str, str]:
    """Return the meaning of each known error code."""
    import yaml

    text = Path(__file__).with_suffix(".yaml").read_text()
    return {str(code): str(meaning) for code, meaning in yaml.safe_load(text).items()}


def codes_in(log: LogText) -> list[ErrorCode]:
    """Return the error codes of a log in order of appearance, without codes that have unknown letters."""
    found: dict[str, list[int]] = {}
    for match in _CODE.finditer(log.text):
        code = match["number"] or match["letters"]
        if code in meanings() or match["number"]:
            found.setdefault(code, []).append(log.index(match.start()))
    return [
        ErrorCode(code, meanings().get(code, ""), log.number(places[0]), len(set(places)))
        for code, places in found.items()
    ]
