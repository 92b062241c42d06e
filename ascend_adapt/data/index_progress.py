"""Progress of index building: prints a line on stderr at intervals, and nothing if building is fast."""

from __future__ import annotations

import sys
import time

SECONDS_BEFORE_FIRST_LINE = 3.0
SECONDS_BETWEEN_LINES = 15.0

# A single array operation on this many items takes seconds, and cannot report progress.
MANY_ITEMS = 30_000_000


class IndexProgress:
    """Prints the progress of one rank. ``prints`` is False on ranks that build nothing."""

    def __init__(self, *, prints: bool) -> None:
        self._prints = prints
        self._next = time.monotonic() + SECONDS_BEFORE_FIRST_LINE

    def __call__(self, doing: str, items: int = 0) -> None:
        """Print the operation ``doing`` if it has many items or enough time has passed since the last line."""
        now = time.monotonic()
        if self._prints and (items >= MANY_ITEMS or now >= self._next):
            self._next = now + SECONDS_BETWEEN_LINES
            print(f"index cache: {doing}", file=sys.stderr, flush=True)
