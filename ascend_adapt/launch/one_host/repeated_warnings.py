"""Filters warnings of torch, torch_npu and Python that several ranks print: only the logs keep repetitions."""

from __future__ import annotations

import re
from collections.abc import Hashable

# ``[rank0]:[W1129 14:45:24.781360416 NPUStream.cpp:767] Warning: ...``: the rank, the date and the time differ.
_OF_TORCH = re.compile(rb"(?:\[rank\d+\]:)?\[W\d{4} [\d:.]+ (.*)")
# ``/path/file.py:83: FutureWarning: ...``, followed by an indented line of source.
_OF_PYTHON = re.compile(rb"(?:\[rank\d+\]:)?\s*(\S.*:\d+: \w*Warning: .*)")


class RepeatedWarnings:
    """Removes warnings that have already been shown from the lines of several sources."""

    def __init__(self) -> None:
        self._shown: set[bytes] = set()
        self._after: set[Hashable] = set()
        self.count = 0
        """Number of removed warnings."""

    def removed_from(self, source: Hashable, text: bytes) -> bytes:
        """Return a source's complete lines without repeated warnings."""
        if b"W" not in text and source not in self._after:
            return text
        kept = []
        for line in text.splitlines(keepends=True):
            if source in self._after:
                self._after.discard(source)
                if line.startswith(b"  "):
                    continue
            found = _OF_TORCH.match(line) or _OF_PYTHON.match(line)
            if found is None or found[1] not in self._shown:
                kept.append(line)
                if found is not None:
                    self._shown.add(found[1])
                continue
            self.count += 1
            if found.re is _OF_PYTHON:
                self._after.add(source)
        return b"".join(kept)
