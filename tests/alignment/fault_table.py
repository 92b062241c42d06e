"""Writes the table of planted faults into docs/alignment.md: each is trained, recorded and compared again.

Usage: python tests/alignment/fault_table.py
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from alignment.planted_faults import FAULTS, ON_TWO_RANKS, Fault, record_on_two_ranks  # noqa: E402
from alignment.small_training import Run  # noqa: E402

from ascend_adapt.alignment import comparison, recording  # noqa: E402
from ascend_adapt.alignment.findings import Finding  # noqa: E402

DOCUMENT = ROOT / "docs" / "alignment.md"
BEGIN, END = "<!-- planted faults -->\n", "<!-- end of planted faults -->"


def main() -> None:
    """Write the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ranks").mkdir()
        clean = {
            recompute: Run(recompute=recompute).record(folder / f"clean{recompute}") for recompute in (False, True)
        }
        rows = []
        for number, fault in enumerate(FAULTS):
            faulty = replace(fault.run, steps=fault.step).record(folder / str(number))
            rows.append(_row(fault, _first(clean[fault.clean.recompute], faulty)))
        record_on_two_ranks(folder / "ranks")
        rows += [_row(one, _first(folder / "ranks" / "clean", folder / "ranks" / one.name)) for one in ON_TWO_RANKS]
    text = DOCUMENT.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    head = "| fault | is in | found: step, phase | module | relative difference, allowed |\n|---|---|---|---|---|\n"
    DOCUMENT.write_text(f"{before}{BEGIN}{head}{''.join(rows)}{END}{after}")


def _first(clean: Path, faulty: Path) -> Finding | None:
    return comparison.compare(recording.read(clean), recording.read(faulty)).first


def _row(fault: Fault, found: Finding | None) -> str:
    if found is None:
        return f"| {fault.name} | {fault.module} | not found | | |\n"
    error = "" if found.error == float("inf") else f"{found.error:.2g}, {found.allowed:.2g}"
    return f"| {fault.name} | {fault.module} | {found.step}, {found.phase} | {found.module} | {error} |\n"


if __name__ == "__main__":
    main()
