"""Tracker files, which name one of the checkpoints beside them."""

from __future__ import annotations

from pathlib import Path

from ascend_adapt.errors import CheckpointError

_LONGEST = 255
"""Bytes in the longest name of a file."""


def tracked_name(tracker: Path) -> str:
    """Return the name in a tracker file.

    Raises:
        CheckpointError: it is a path, which could lead out of the folder, or no file can have this name.
    """
    with tracker.open("rb") as stream:
        named = stream.read(_LONGEST + 2).decode(errors="replace").strip()
    if Path(named).name != named or named == ".." or "\0" in named or len(named.encode()) > _LONGEST:
        raise CheckpointError(f"{tracker}: names {named[:50]!r}, expected the name of a folder next to it — correct it")
    return named
