"""Tracker files, which name the latest of the checkpoints next to them."""

from __future__ import annotations

from pathlib import Path

from ascend_adapt import regular_files
from ascend_adapt.errors import CheckpointError

_LONGEST = 255
"""Maximum length of a file name, in bytes."""


def tracked_name(tracker: Path) -> str:
    """Return the name in a tracker file.

    Raises:
        CheckpointError: the name is a path, which could lead out of the folder, or is not a valid file name.
    """
    with regular_files.open_binary(tracker) as stream:
        named = stream.read(_LONGEST + 2).decode(errors="replace").strip()
    if Path(named).name != named or named == ".." or "\0" in named or len(named.encode()) > _LONGEST:
        raise CheckpointError(f"{tracker}: names {named[:50]!r}, expected the name of a folder next to it — correct it")
    return named
