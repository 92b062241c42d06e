"""Command line of the benchmarks: options that select rows, and the result of a row's process."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def parser(description: str | None, seconds: Mapping[str, int], into: str, tiny: str) -> argparse.ArgumentParser:
    """Return the parser; ``seconds`` has the estimate of each row, ``into`` is the default results folder."""

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in seconds]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected names of {', '.join(seconds)}")
        return chosen

    listed = ", ".join(f"{name} ({each} s)" for name, each in seconds.items())
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--rows", type=names, default=[], help=f"comma-separated names: {listed}; {sum(seconds.values())} s in all"
    )
    made.add_argument("--minutes", type=float, default=9.5, help="do not start rows whose estimated end is later")
    made.add_argument("--tiny", action="store_true", help=tiny)
    made.add_argument("--into", type=Path, default=Path(into), help="results folder")
    return made


def result(printed: str, errors: str, code: int) -> dict[str, Any]:
    """Return the last JSON line that a row's process printed, or the reason why it failed."""
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    if code or not lines:
        return {"failed": errors[-1500:].strip() or f"exit code {code}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found
