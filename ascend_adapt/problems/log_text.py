"""Log parsing: removes launchers' prefixes from lines, and finds the frames of tracebacks."""

from __future__ import annotations

import codecs
import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from ascend_adapt import regular_files
from ascend_adapt.errors import SettingsError

LARGEST = 32 << 20
# Control sequences, which a terminal would execute: colours, cursor movements, titles (OSC), and others.
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
# Prefixes of torchrun, accelerate, DeepSpeed's pdsh, Ray, vLLM's engine processes and ascend-run.
_PREFIX = re.compile(
    r"^(?:\[(?:rank|default)?\d+\]:? ?|\((?:\w+ )?pid=\d+(?:, ip=[\d.]+)?\) ?|worker-?\d+: ?|rank \d+: ?"
    r"|(?:ERROR|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]+:\d+\] ?)+",
    re.MULTILINE,
)
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (\S+)|^[│|]\s+(/\S+\.py):(\d+) in (\w+)')
_PACKAGES = re.compile(
    r"(?:site|dist)-packages/|/lib(?:64)?/python\d|^<frozen|/(?:torch|ascend_adapt/\w+|_ray_pkg_\w+)/"
)
# In a clone, the plugins are beside ascend_adapt; installed, all are in site-packages.
_PLUGINS = f"{Path(__file__).parents[2] / 'plugins'}/"
# Import finders and loaders: Python's own, wrapt's and ours, between an import statement and its error.
_OUR_HOOKS = r"ascend_adapt/.+|without_cuda/(?:programs|gpu_assertions|import_finders)"
_IMPORT_HOOK = re.compile(rf"^<frozen importlib|/(?:wrapt/importer|{_OUR_HOOKS})\.py$")
_OF_A_HOOK = re.compile(r"(?:_self)?_?(?:find_spec|(?:exec|create|load)_module)|found_after")
_INSTALLED = re.compile(r"(?:site|dist)-packages/([\w.-]+?)(?:/|\.py)")
# The end of ascend_adapt's line about a package that cannot be imported, such as torch_npu without CANN.
_HANDLED = "treated as not installed"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Failed|Warning)\b")
_LONGEST_TRACEBACK = 400


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback."""

    file: str
    line: int
    function: str
    code: str

    @property
    def is_package(self) -> bool:
        """Whether the file belongs to an installed package or to Python."""
        return self.file.startswith(_PLUGINS) or bool(_PACKAGES.search(self.file))

    @property
    def is_import_hook(self) -> bool:
        """Whether it is of an import finder or loader, which runs for the code that imports."""
        found = _IMPORT_HOOK.search(self.file)
        return found is not None and (found[0].startswith("<") or bool(_OF_A_HOOK.fullmatch(self.function)))

    @property
    def package(self) -> str:
        """Top-level name of the installed package that the file belongs to, or ""."""
        found = _INSTALLED.search(self.file)
        return found[1] if found else ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.code or self.function}"


class LogText:
    """A log without line prefixes, with unchanged line numbers."""

    def __init__(self, text: str, first_line: int = 1) -> None:
        self.text = _PREFIX.sub("", _CONTROL.sub("", text.replace("\r\n", "\n")))
        self.lines = self.text.split("\n")
        self._first_line = first_line
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def index(self, offset: int) -> int:
        """Return the index of the line at an offset of the text."""
        low, high = 0, len(self.lines)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._starts[middle] <= offset else (low, middle)
        return low

    def number(self, index: int) -> int:
        """Return the line number in the file of the line with this index."""
        return self._first_line + index

    def shown(self, offset: int, longest: int) -> str:
        """Return the line at an offset, shortened, and from the last carriage return (of a progress bar) on."""
        line = self.index(offset)
        start = max(self._starts[line], self.text.rfind("\r", 0, offset) + 1)
        text = self.text[offset : self._starts[line + 1] - 1].partition("\r")[0]
        before = self.text[start:offset] if offset - start < longest // 2 else "... "
        return (before + text).strip()[:longest]

    def around(self, index: int, before: int, after: int) -> str:
        """Return the lines around a line."""
        return "\n".join(self.lines[max(0, index - before) : index + after + 1])

    def last_exception(self) -> int | None:
        """Return the index of the line with the exception of the last traceback, or None."""
        for index in range(len(self.lines) - 1, -1, -1):
            if _EXCEPTION.match(self.lines[index]) and self.frames(index):
                return index
        return None

    def is_handled(self, index: int) -> bool:
        """Return whether a line reports a failed import that was handled, without an exception."""
        return _HANDLED in self.lines[index] and self.last_exception() is None

    def frames(self, index: int) -> list[Frame]:
        """Return the frames of the traceback that ends at a line or shortly before it, outermost first."""
        top = index
        while (
            top > 0 and index - top < _LONGEST_TRACEBACK and "Traceback (most recent call last" not in self.lines[top]
        ):
            top -= 1
        if "Traceback (most recent call last" not in self.lines[top] and not self.lines[top].startswith("╭"):
            return []
        frames = []
        for number in range(top, index + 1):
            found = _FRAME.search(self.lines[number])
            if found:
                below = self.lines[number + 1].strip() if number + 1 < len(self.lines) and found[1] else ""
                code = "" if below.startswith("File ") else below
                frames.append(Frame(found[1] or found[4], int(found[2] or found[5]), found[3] or found[6], code))
        return frames


def _decoded(data: bytes, mark: bytes) -> str:
    """Return the text of a log. ``mark`` is the start of the file, which may be a byte order mark of UTF-16."""
    if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return data.decode("utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be", "replace").lstrip("\ufeff")
    text = data.decode("utf-8-sig", "replace")
    wrong = text.count("\ufffd")
    # A UTF-8 log may have a few cut characters. In a GB 18030 log, most characters would be wrong in UTF-8.
    if wrong > len(text) - len(text.encode("ascii", "ignore")) - wrong:
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode("gb18030")
    return text


def read(file: Path, largest: int = LARGEST) -> LogText:
    """Return the text of a log in UTF-8, UTF-16 or GB 18030, at most its last ``largest`` bytes.

    Raises:
        SettingsError: the log cannot be read.
    """
    try:
        with regular_files.open_binary(file) as opened:
            # The offset is even, so that no UTF-16 code unit is cut.
            skipped = max(0, file.stat().st_size - largest) & ~1
            start = opened.read(min(1 << 20, skipped))
            first = 1 + start.count(b"\n")
            while skipped and opened.tell() < skipped:
                first += opened.read(min(1 << 20, skipped - opened.tell())).count(b"\n")
            data = opened.read(largest)  # bounded, because a pipe has no size and may not end
            return LogText(_decoded(data, (start or data)[:2]), first)
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}, expected the log of a job — correct the path") from error
