"""Command line of `ascend-adapt compare`: options and output."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ascend_adapt.errors import SettingsError


def add_compare(commands: Any) -> argparse.ArgumentParser:
    """Add the command to ``commands``, a subparsers action, and return its parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare", help="find the first module where two recorded runs diverge by more than the dtype allows"
    )
    parser.add_argument("a", type=Path, metavar="A", help="a recording (ascend-run --record), or an msprobe dump")
    parser.add_argument("b", type=Path, nargs="?", metavar="B", help="the recording or dump to compare it with")
    parser.add_argument("--to-msprobe", type=Path, metavar="DIR", help="write A as an msprobe dump into a new folder")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_compare)
    return parser


def _compare(known: argparse.Namespace) -> int:
    from ascend_adapt.alignment import comparison, msprobe, report

    if (known.b is None) == (known.to_msprobe is None):
        raise SettingsError(
            "B, --to-msprobe: neither or both given, expected one — pass a second recording, or a new folder"
        )
    ours = msprobe.read_any(known.a)
    if known.to_msprobe is not None:
        count = msprobe.write(ours, known.to_msprobe)
        print(f"{known.to_msprobe}: {count} steps of {known.a} as an msprobe dump")
        return 0
    found = comparison.compare(ours, msprobe.read_any(known.b))
    if known.json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        report.show(found, str(known.a), str(known.b))
    return 1 if found.first is not None else 0
