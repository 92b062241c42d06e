"""Tell the rows that could not be checked."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", ())
    unchecked = [report.nodeid for report in skipped if "not checked: " in str(report.longrepr)]
    if unchecked:
        terminalreporter.write_line(f"{len(unchecked)} rows not checked, for want of a connection: {unchecked}")
