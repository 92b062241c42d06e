"""Logs of a run, followed while it runs: metrics, and the arguments that the program prints at its start."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ascend_adapt import regular_files
from ascend_adapt.report import log_lines, native_rows
from ascend_adapt.report.curves import Gathered

_AT_ONCE = 1 << 20
_LONGEST = 1 << 16
# Megatron-LM, both Megatron-DeepSpeed forks, GPT-NeoX and GLM print `  name ...... value`; GPT-NeoX adds
# `......updated`.
_ARGUMENTS_BEGIN = re.compile(r"-{5,} arguments -{5,}")
_ARGUMENTS_END = re.compile(r"-{5,} end of arguments -{5,}")
_ARGUMENT = re.compile(r"  ([\w-]+) \.{2,} (.*?)(?:\.{2,}(?:updated|default))?\s*")
_MOST_ARGUMENTS = 2000
# "using world size: 4, data-parallel size: 1, tensor-model-parallel size: 2, pipeline-model-parallel size: 2"
_SIZES = re.compile(
    r"(world|data-parallel|tensor-model-parallel|pipeline-model-parallel|model-parallel)[ -]size: (\d+)"
)


class Followed:
    """A file to which a run appends lines. ``read`` processes new lines, and starts again if the file was replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None
        self._offset, self._rest = 0, b""
        self.begin()

    def read(self) -> None:
        """Read new lines.

        Raises:
            OSError: the file cannot be read.
        """
        with regular_files.open_binary(self.path) as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity != self._identity or status.st_size < self._offset:
                self._identity, self._offset, self._rest = identity, 0, b""
                self.begin()
            file.seek(self._offset)
            while data := file.read(_AT_ONCE):
                self._offset += len(data)
                # A progress bar overwrites its line after \r.
                *lines, rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
                self._rest = rest[-_LONGEST:]
                for line in lines:
                    self.take(line.decode(errors="replace"))

    def begin(self) -> None:
        """Forget all lines."""
        raise NotImplementedError

    def take(self, line: str) -> None:
        """Process one line."""
        raise NotImplementedError


class ProgramLog(Followed):
    """Output of a training program.

    Attributes:
        metrics: the curves.
        arguments: the arguments that the program printed at its start.
        sizes: the parallel sizes that the program printed, such as {"world": 4, "tensor-model-parallel": 2}.
    """

    def begin(self) -> None:
        """Forget all lines."""
        self.metrics = Gathered()
        self.arguments: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self._in_arguments = False

    def take(self, line: str) -> None:
        """Process one line."""
        self.metrics.add(log_lines.points(line))
        if self._in_arguments:
            self._in_arguments = not _ARGUMENTS_END.search(line)
            if (match := _ARGUMENT.fullmatch(line)) and len(self.arguments) < _MOST_ARGUMENTS:
                self.arguments[match[1]] = match[2]
        elif _ARGUMENTS_BEGIN.search(line):
            self._in_arguments = True
        elif "world size: " in line:
            self.sizes |= {name: int(size) for name, size in _SIZES.findall(line)}


class MetricsFile(Followed):
    """metrics.jsonl or evaluations.jsonl of a native run, as ``ascend_adapt.native.metrics.run_log`` writes them."""

    def begin(self) -> None:
        """Forget all lines."""
        self.metrics = Gathered()

    def take(self, line: str) -> None:
        """Process one row, unless a crash has truncated it."""
        try:
            self.metrics.add(list(native_rows.points(json.loads(line))))
        except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return
