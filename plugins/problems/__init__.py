"""Known problems of training on Ascend NPUs, one file for each kind."""

from __future__ import annotations

from pathlib import Path

from ascend_adapt import hookimpl


@hookimpl
def register_problems() -> list[Path]:
    """Return the files of this folder."""
    return sorted(Path(__file__).parent.glob("*.yaml"))
