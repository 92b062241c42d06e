"""Runs files of tests, each in a process of its own that is forked after torch_npu is imported.

worker.py SECONDS CASES: reads ``FILE<tab>RESULTS`` lines from stdin, and appends to RESULTS one JSON line for each test
as it begins and ends. CASES is how many tests of a file are run, chosen by a hash of their names. A test that takes
more than SECONDS of CPU time, or whose process ends, does not keep the others of its file from being run: they
get a new process. Prints each file that has ended. Loading torch and torch_npu once for all files saves five seconds
a file.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import random
import signal
import sys
import time
import unittest
from pathlib import Path
from typing import Any

import forked_ranks
import numpy
import pytest
import torch

SEED = 1234
COLLECTION_SECONDS = 120
IDLE_FACTOR = 8
"""A test that waits, or a busy machine: it may take this many times its CPU time."""
_FILE = "(file)"
_READS_ENVIRONMENT_AT_IMPORT = frozenset(("test_nslb.py",))
"""Its ranks need a torch_npu that is imported after the test has set its variables."""


class Outcomes:
    """pytest plugin: chooses the tests, and writes the outcome of each, and of a failure the error."""

    def __init__(self, path: Path, seconds: float, cases: int) -> None:
        entries = read(path)
        self._done = {entry["test"] for entry in entries} - too_slow(entries, seconds)
        self._cases = cases
        self._stream = path.open("a")
        self._errors: dict[str, str] = {}

    def _write(self, test: str, outcome: str, error: str = "") -> None:
        write(self._stream, test, outcome, error)

    def pytest_pycollect_makeitem(self, obj: object) -> None:
        # pytest makes an instance for this method, which some of the classes look up.
        is_case = isinstance(obj, type) and issubclass(obj, unittest.TestCase)
        if is_case and not hasattr(obj, "runTest") and any(name.startswith("test") for name in dir(obj)):
            obj.runTest = lambda case: None  # type: ignore[attr-defined]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(_FILE, "not collected", str(report.longrepr)[-2000:])

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._write(_FILE, "collected", str(len(items)))
        order = sorted((_name(item.nodeid) for item in items), key=lambda name: hashlib.sha256(name.encode()).digest())
        chosen = set(order[: self._cases]) - self._done
        items[:] = [item for item in items if _name(item.nodeid) in chosen]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(_name(nodeid), "begun")

    def pytest_runtest_setup(self) -> None:
        # The files set such seeds only where they are run as a script.
        random.seed(SEED)
        numpy.random.seed(SEED)
        torch.manual_seed(SEED)

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


def read(path: Path) -> list[dict[str, str]]:
    """Return what is written of a file so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def too_slow(entries: list[dict[str, str]], seconds: float) -> set[str]:
    """Return the tests that ended at a limit lower than this one, and so are run again."""
    outcomes = {entry["test"]: entry for entry in entries}
    return {
        test
        for test, entry in outcomes.items()
        if entry["outcome"] == "time limit" and float(entry["error"].split()[0]) < seconds
    }


def write(stream: Any, test: str, outcome: str, error: str = "") -> None:
    """Append the outcome of a test."""
    stream.write(json.dumps({"test": test, "outcome": outcome, "error": error}) + "\n")
    stream.flush()


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2]


def _error(call: pytest.CallInfo[None], report: pytest.TestReport) -> str:
    """Return the types and first lines of an error and of those that led to it, and what the test printed."""
    found = []
    error = call.excinfo.value if call.excinfo else None
    while error is not None and len(found) < 4:
        text = str(error)
        # The end of a rank's error, which the test puts into its own, is what matters.
        found.append(f"{type(error).__name__}: {text if len(text) < 1200 else text[:200] + ' ... ' + text[-1000:]}")
        error = error.__cause__ or error.__context__
    return "\n".join([*found, report.capstderr[-1500:]])


def main() -> None:
    seconds, cases = float(sys.argv[1]), int(sys.argv[2])
    from ascend_adapt.emulation import rank

    rank.watch()
    import torch.testing._internal.common_utils
    import torch_npu.testing.testcase  # noqa: F401

    torch.testing._internal.common_utils.parse_cmd_line_args()  # as the files do where they are run as a script
    torch.set_num_threads(1)
    gc.freeze()  # so that a collection in a child does not copy the pages of all these modules
    print("ready", flush=True)
    for line in sys.stdin:
        file, results = line.rstrip("\n").split("\t")
        run(Path(file), Path(results), seconds, cases)
        print(file, flush=True)


def run(file: Path, results: Path, seconds: float, cases: int) -> None:
    """Run the tests of a file in as many processes as their crashes and limits make necessary."""
    while (how := _run_process(file, results, seconds, cases)) != "complete":
        entries = read(results)
        last = entries[-1] if entries else {"test": _FILE, "outcome": "begun"}
        with results.open("a") as stream:
            if last["test"] == _FILE:  # no test has begun in this process
                write(stream, _FILE, "not collected", how)
                return
            if last["outcome"] == "begun":
                limited = how == "time limit"
                write(stream, last["test"], how if limited else "crashed", f"{seconds:g} s" if limited else how)


def _run_process(file: Path, results: Path, seconds: float, cases: int) -> str:
    child = os.fork()
    if child == 0:
        os.setsid()
        _run_in_child(file, results, seconds, cases)
    try:
        return _wait(child, results, seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # processes that the tests started


def _wait(child: int, results: Path, seconds: float) -> str:
    """Return how the process ended; it is killed if a test, or collecting the tests, reaches the limit."""
    size, since, used = -1, 0.0, 0.0
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return (
                "complete" if code == 0 else f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
            )
        now = results.stat().st_size if results.exists() else 0
        if now != size:
            size, since, used = now, time.monotonic(), _processor_time(child)
        elif time.monotonic() - since > seconds:
            entries = read(results)
            limit = seconds if entries and entries[-1]["test"] != _FILE else COLLECTION_SECONDS
            if _processor_time(child) - used > limit or time.monotonic() - since > IDLE_FACTOR * limit:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "time limit"
        time.sleep(0.05)


def _processor_time(session: int) -> float:
    """Return the seconds of CPU time of the processes of a session, and of those that they waited for."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _run_in_child(file: Path, results: Path, seconds: float, cases: int) -> None:
    log = os.open(results.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(file.parent)
    sys.argv[1:] = []
    if "distributed" in file.parts and file.name not in _READS_ENVIRONMENT_AT_IMPORT:
        forked_ranks.begin()
    roots = {str(parent) for parent in file.parents if parent.name == "test"}
    sys.path[:0] = [str(file.parent), *roots]
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(file.parent), "-c", os.devnull]
    pytest.main([*options, str(file)], plugins=[Outcomes(results, seconds, cases)])
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
