"""Known problems of training on Ascend NPUs, with one file per kind."""

from __future__ import annotations

from pathlib import Path

from ascend_adapt import hookimpl


@hookimpl
def register_problems() -> list[Path]:
    """Return the files with known problems in this folder."""
    return sorted(Path(__file__).parent.glob("*.yaml"))
