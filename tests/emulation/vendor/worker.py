"""Runs files of tests, each in a process of its own that is forked after torch_npu is imported.

worker.py SECONDS: reads ``FILE<tab>RESULTS`` lines from stdin, and appends to RESULTS one JSON line for each test as it
ends. Prints how each file ended. Loading torch and torch_npu once for all files saves five seconds a file.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest


class Outcomes:
    """pytest plugin: writes the outcome of each test, and of a failure the error."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("a")
        self._reports: dict[str, pytest.TestReport] = {}
        self._errors: dict[str, str] = {}

    def _write(self, test: str, outcome: str, error: str = "") -> None:
        self._stream.write(json.dumps({"test": test, "outcome": outcome, "error": error}) + "\n")
        self._stream.flush()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write("", "not collected", str(report.longrepr)[-2000:])

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._write("", "collected", str(len(items)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(_name(nodeid), "begun")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = (yield).get_result()
        name = _name(item.nodeid)
        if report.failed:
            self._errors.setdefault(name, _error(call, report))
        if call.when == "teardown" or report.skipped:
            error = self._errors.pop(name, "")
            skipped = report.skipped and not error
            self._write(name, "skipped" if skipped else "failed" if error else "passed", error)
            if report.skipped:
                self._errors.pop(name, None)


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2]


def _error(call: pytest.CallInfo[None], report: pytest.TestReport) -> str:
    """Return the types and first lines of an error and of those that led to it, and what the test printed."""
    found = []
    error = call.excinfo.value if call.excinfo else None
    while error is not None and len(found) < 4:
        found.append(f"{type(error).__name__}: {str(error)[:600]}")
        error = error.__cause__ or error.__context__
    return "\n".join([*found, report.capstderr[-1500:]])


def main() -> None:
    limit = float(sys.argv[1])
    from ascend_adapt.emulation import rank

    rank.watch()
    import torch
    import torch.testing._internal.common_utils
    import torch_npu.testing.testcase  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()  # so that a collection in a child does not copy the pages of all these modules
    print("ready", flush=True)
    for line in sys.stdin:
        file, results = line.rstrip("\n").split("\t")
        print(f"{_run(Path(file), Path(results), limit)}\t{file}", flush=True)


def _run(file: Path, results: Path, limit: float) -> str:
    child = os.fork()
    if child == 0:
        os.setsid()
        _run_in_child(file, results)
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            os.killpg(child, signal.SIGKILL) if _has_group(child) else None
            code = os.waitstatus_to_exitcode(status)
            return f"killed by {signal.Signals(-code).name}" if code < 0 else "complete"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "time limit"


def _has_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _run_in_child(file: Path, results: Path) -> None:
    log = os.open(results.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(file.parent)
    sys.argv[1:] = []
    roots = {str(parent) for parent in file.parents if parent.name == "test"}
    sys.path[:0] = [str(file.parent), *roots]
    options = ["-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "--timeout", "60", "--rootdir", str(file.parent)]
    pytest.main([*options, "-c", os.devnull, str(file)], plugins=[Outcomes(results)])
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
