"""Timeouts and orders of events read the monotonic clock: the wall clock jumps, by NTP and by suspending a host."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "ascend_adapt"

# What is compared with the time of a file or of another host, or only shown, can be read from no other clock.
OF_DAY = {
    "build_locks": "age of a lock file, beside a check of its process",
    "diagnosis/collect": "shown: when the facts were collected",
    "diagnosis/doctor": "age of a lock file",
    "launch/in_process/status_file": "shown: when a process ended",
    "launch/many_hosts/agent": "the clocks of hosts compared",
    "launch/many_hosts/inspection": "the clocks of hosts compared",
    "launch/many_hosts/launcher": "the clocks of hosts compared",
    "launch/one_host/moment": "order of failures on hosts that only share a run directory",
    "data/preprocessing": "makes each run that reads standard input different",
    "launch/one_host/processes": "start of a process, compared with the time of its files",
    "launch/one_host/recipients": "age of a beacon file; after a jump a signal is sent twice, or once less",
    "report/run": "shown: a run that has not ended",
}


def test_the_wall_clock_is_read_for_files_other_hosts_and_people_only():
    found = {
        str(path.relative_to(PACKAGE).with_suffix(""))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.time", "time.time_ns")
    }
    assert found == set(OF_DAY)
