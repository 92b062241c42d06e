"""Report the rows that were not checked."""

from __future__ import annotations

import sys
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", ())
    unchecked = [report.nodeid for report in skipped if "not checked: " in str(report.longrepr)]
    if unchecked:
        terminalreporter.write_line(f"{len(unchecked)} rows not checked, without a connection: {unchecked}")
    mutations = next((module for name, module in sys.modules.items() if name.endswith("mutations")), None)
    for where, count in getattr(mutations, "REPORTED", {}).items():
        outcome = f"{count}, every one reported as drifted, none applied" if count else "none was seen to be reported"
        terminalreporter.write_line(f"mutations, {where}: {outcome}")
