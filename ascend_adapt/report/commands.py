"""`ascend-adapt report`: writes the page, once or repeatedly while a job runs."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ascend_adapt.errors import SettingsError
from ascend_adapt.whole_numbers import whole_number

_EVERY_S = 5
_LONGEST_S = 3600


def add_report(commands: Any) -> argparse.ArgumentParser:
    """Add the command to a parser's subcommands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report", help="write an HTML page of a run, or of two compared: curves, ranks, patches, errors"
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="run directory of ascend-run, or the log of any job; two of them are compared",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the page (default: report.html in the first run directory)"
    )
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=_EVERY_S,
        metavar="SECONDS",
        help=f"update the page every SECONDS ({_EVERY_S}) until the job ends; an open page reloads",
    )
    parser.set_defaults(run=_report)
    return parser


def _report(known: argparse.Namespace) -> int:
    from ascend_adapt.report.page import page
    from ascend_adapt.report.run import RUNNING, RunReader

    if len(known.runs) > 2:
        raise SettingsError(f"{len(known.runs)} runs: expected one, or two to compare — leave the others out")
    readers = [RunReader(path) for path in known.runs]
    output: Path = known.output or _default_output(known.runs)
    if output.is_dir():
        raise SettingsError(f"--output {output}: is a folder, expected a file — pass a file in it")
    is_first = True
    while True:
        runs = [reader.read() for reader in readers]
        _write(output, page(runs, known.watch))
        is_running = known.watch is not None and any(run.state == RUNNING for run in runs)
        if is_first or not is_running:
            print(f"report: {output}", flush=True)
        if not is_running:
            return 0
        if is_first:
            print(
                f"the job is running: the page is written every {known.watch} s until it ends; Ctrl-C stops", flush=True
            )
        is_first = False
        try:
            time.sleep(known.watch)
        except KeyboardInterrupt:
            # The last version of the page does not reload itself.
            _write(output, page([reader.read() for reader in readers]))
            print(f"\nreport: {output} — the job is still running")
            return 0


def _default_output(runs: Sequence[Path]) -> Path:
    name = "report.html" if len(runs) == 1 else "report-compared.html"
    return runs[0] / name if runs[0].is_dir() else runs[0].with_name(f"{runs[0].name}.{name}")


def _write(path: Path, text: str) -> None:
    """Write the page atomically.

    Raises:
        SettingsError: the page cannot be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise SettingsError(f"{path}: {error.strerror}, expected to write the report — choose --output FILE") from error


def _seconds(text: str) -> int:
    seconds = whole_number(text) or 0
    if not 1 <= seconds <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds (1 to {_LONGEST_S})")
    return seconds
