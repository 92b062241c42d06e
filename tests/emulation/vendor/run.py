"""Runs the vendor's own tests on the emulated NPU (make vendor-tests).

Ascend/pytorch and Ascend/op-plugin are cloned at the stated tag, to a folder outside this repository. Every file of the
tests runs in a process of its own, at most --cases of its tests, each for at most --seconds of CPU time. Results
are kept in that folder, and a stopped run resumes; with more --seconds the tests that reached their limit run again.
Then the record, vendor_tests.json, and the table of docs/rehearsal.md are written from all results. Files of the record
that the folder has no results of keep their entries, so a run in a new folder adds to it.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from worker import read, too_slow, write

from ascend_adapt.emulation import environment
from ascend_adapt.launch.placement import environment as launch_environment

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RECORD = HERE / "vendor_tests.json"
PAGE = ROOT / "docs" / "rehearsal.md"
REVIEWED = HERE / "reviewed.yaml"
PACKAGES = ROOT / ".vendor-tests"
TAG = "v26.2.0-beta.1-pytorch2.13.0"
"""Of Ascend/pytorch."""
OP_PLUGIN = "5045ad2a3ad1d4d5d3b4c074e11e72fee112c464"
"""The commit of op-plugin as a submodule at that tag."""
DEVICES = 8

CLASSES = ("passed", "correctly rejected", "not emulated", "of the host", "wrong", "crashed", "time limit")
_NOT_EMULATED = re.compile(
    r"OperatorMissing|the emulated (?:CANN|NPU) does not have it|Failed to find function|not emulated|"
    r"lib\w+\.so: cannot open"
)
_WARNING = re.compile(r"(?m)^\[W\d+ .*$")
"""A line that torch_npu prints, such as one about an unused function that CANN lacks: not why a test fails."""


@dataclass(frozen=True)
class Source:
    """The tests of one repository."""

    repository: str
    commit: str
    folders: tuple[str, ...]
    left_out: dict[str, str]
    """Patterns of files that are not run -> the reason."""


SOURCES = {
    "pytorch": Source(
        "https://github.com/Ascend/pytorch",
        TAG,
        ("test",),
        {
            "test/onnx/*": "export: computes on no device",
            "test/_inductor/*": "needs triton-ascend",
            "test/cpp*/*": "compiles against CANN's headers",
            "test/_afd/*": "serving",
            "test/package/*": "computes on no device",
            "test/fx/*": "computes on no device",
            "test/jit/*": "computes on no device",
            "test/test_jit*.py": "torch's own tests of TorchScript, which need more than an hour",
            "test/test_fx*.py": "computes on no device",
            "test/test_dvm.py": "needs the compiler of CANN",
        },
    ),
    "op-plugin": Source(
        "https://github.com/Ascend/op-plugin",
        OP_PLUGIN,
        ("test/test_base_ops", "test/test_custom_ops", "test/test_v2r13_ops"),
        {"*/test_atb_*": "serving: needs CANN's library libatb"},
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path, help="folder of the checkouts pytorch and op-plugin, and of results")
    parser.add_argument("--only", default="*", help="pattern of files, such as 'op-plugin/*test_npu_slice.py'")
    parser.add_argument("--seconds", type=float, default=30, help="CPU time of one test")
    parser.add_argument("--cases", type=int, default=10, help="tests of a file, chosen by a hash of their names")
    parser.add_argument("--files", type=int, help="stop after so many files; their order is arbitrary but fixed")
    parser.add_argument("--new", action="store_true", help="only files that the record does not have")
    parser.add_argument("--record", action="store_true", help="only write the record and the table")
    options = parser.parse_args()
    checkouts = options.checkouts.resolve()
    results = checkouts / "results"
    before = kept(json.loads(RECORD.read_text()))
    results.mkdir(parents=True, exist_ok=True)
    if not options.record:
        for name, source in SOURCES.items():
            clone(checkouts / name, source.repository)
            subprocess.run(["git", "-C", str(checkouts / name), "checkout", "--quiet", source.commit], check=True)
        chosen = [file for file in files(checkouts) if fnmatch.fnmatch(file, options.only)]
        chosen = [file for file in chosen if not (options.new and file in before)]
        run(checkouts, results, chosen[: options.files], options.seconds, options.cases)
    found = summary(results, disabled_tests(checkouts), yaml.safe_load(REVIEWED.read_text()))
    record = {"tag": TAG, "op-plugin": OP_PLUGIN, "files": before | found}
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    text = PAGE.read_text()
    PAGE.write_text(_BETWEEN.sub(lambda match: f"{match[1]}\n{table(record)}\n{match[3]}", text))
    print(table(record))
    return 0


_BETWEEN = re.compile(r"(<!-- made by `make vendor-tests` -->)\n(.*?)\n(<!-- end of what is made -->)", re.S)


def clone(folder: Path, repository: str) -> None:
    """Clone a repository, without checking it out, if the folder is missing."""
    if not folder.is_dir():
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", repository, str(folder)], check=True)


def files(checkouts: Path) -> list[str]:
    """Return the files to run, in an arbitrary but fixed order: so the first N are a sample."""
    found = []
    for name, source in SOURCES.items():
        for folder in source.folders:
            for path in (checkouts / name / folder).rglob("test_*.py"):
                inside = str(path.relative_to(checkouts / name))
                if not any(fnmatch.fnmatch(inside, pattern) for pattern in source.left_out):
                    found.append(f"{name}/{inside}")
    return sorted(found, key=lambda file: hashlib.sha256(file.encode()).digest())


def run(checkouts: Path, results: Path, chosen: Iterable[str], seconds: float, cases: int) -> None:
    """Run files that have not ended yet, one after the other."""
    environ = dict(os.environ)
    machine = environment.prepare("910B", DEVICES, environ, print)
    environ |= launch_environment.of_emulation(machine, environ)
    environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ["PYTHONPATH"] += os.pathsep + str(PACKAGES)
    environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), environ["PATH"]))  # tests call torchrun
    command = [sys.executable, str(HERE / "worker.py"), str(seconds), str(cases)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdout.readline()
        for file in chosen:
            path = results / f"{file.replace('/', '+')}.jsonl"
            entries = read(path)
            if entries and entries[-1]["outcome"] == "ended" and not too_slow(entries, seconds):
                continue
            begun = time.monotonic()
            worker.stdin.write(f"{checkouts / file}\t{path}\n")
            worker.stdin.flush()
            if not worker.stdout.readline():
                raise SystemExit(f"{file}: the process that starts the tests has ended — look at {path}")
            with path.open("a") as stream:
                write(stream, "", "ended")
            print(f"{time.monotonic() - begun:.1f} s: {file}", flush=True)


def disabled_tests(checkouts: Path) -> set[str]:
    """Return the tests of torch that Ascend/pytorch's own CI leaves out, as ``class::test``."""
    listed = json.loads((checkouts / "pytorch/test/unsupported_test_cases/.pytorch-disabled-tests.json").read_text())
    pairs = (re.fullmatch(r"(\S+) \(__main__\.(\S+)\)", name) for name in listed)
    return {f"{pair[2]}::{pair[1]}" for pair in pairs if pair is not None}


def kept(record: dict[str, Any]) -> dict[str, object]:
    """Return the files of a record, if it is of the stated tag and commit."""
    return record["files"] if (record["tag"], record["op-plugin"]) == (TAG, OP_PLUGIN) else {}


def summary(results: Path, disabled: set[str], reviewed: list[dict[str, str]]) -> dict[str, object]:
    """Return for each file that ended the number of cases of each class, and the cases that did not pass."""
    by_file: dict[str, object] = {}
    for path in sorted(results.glob("*.jsonl")):
        file = path.name.removesuffix(".jsonl").replace("+", "/")
        counts: Counter[str] = Counter()
        others: dict[str, dict[str, str]] = defaultdict(dict)
        cases = 0
        outcomes: dict[str, tuple[str, str]] = {}
        entries = read(path)
        if not entries or entries[-1]["outcome"] != "ended":
            continue
        for entry in entries:
            if entry["outcome"] == "collected":
                cases = int(entry["error"])
            elif entry["outcome"] not in ("begun", "ended"):
                outcomes[entry["test"]] = entry["outcome"], entry["error"]
        for test, (outcome, error) in outcomes.items():
            kind, reason = classify(file, test, outcome, error, disabled, reviewed)
            counts[kind] += 1
            if kind in CLASSES[1:]:
                others[kind][test] = reason
        by_file[file] = {"cases": cases, "counts": dict(counts), **others}
    return by_file


def classify(
    file: str, test: str, outcome: str, error: str, disabled: set[str], reviewed: list[dict[str, str]]
) -> tuple[str, str]:
    """Return the class of a case and why; "skipped" is for those that the vendor leaves out."""
    if outcome == "skipped" or (file.startswith("pytorch/") and test in disabled):
        return "skipped", ""
    if outcome == "passed":
        return "passed", ""
    for entry in reviewed:
        if fnmatch.fnmatch(f"{file}::{test}", entry.get("case", "*")) and re.search(entry.get("error", ""), error):
            return entry["class"], entry["why"]
    if outcome in ("time limit", "crashed"):
        return outcome, error
    first = error.strip().splitlines()[0][:160] if error.strip() else outcome
    return ("not emulated" if _NOT_EMULATED.search(_WARNING.sub("", error)) else "wrong"), first


def table(record: dict[str, object]) -> str:
    """Return the table of the documentation."""
    entries: dict[str, dict[str, object]] = record["files"]  # type: ignore[assignment]
    rows = [f"| tests of | files | {' | '.join(CLASSES)} | left out | passed or correctly rejected |"]
    rows.append("|---" * (len(CLASSES) + 4) + "|")
    for name, folders in _groups(entries):
        counts: Counter[str] = Counter()
        for file in folders:
            counts.update(entries[file]["counts"])  # type: ignore[arg-type]
        judged = sum(counts[kind] for kind in CLASSES if kind not in ("of the host", "time limit"))
        good = counts["passed"] + counts["correctly rejected"]
        share = f"{100 * good / judged:.1f} %" if judged else "—"
        cells = " | ".join(str(counts[kind]) for kind in CLASSES)
        rows.append(f"| {name} | {len(folders)} | {cells} | {counts['skipped']} | {share} |")
    return "\n".join(rows)


def _groups(entries: dict[str, dict[str, object]]) -> Iterator[tuple[str, list[str]]]:
    named = {
        "op-plugin, operators of torch": "op-plugin/test/test_base_ops/",
        "op-plugin, its own operators": "op-plugin/test/test_custom_ops/",
        "pytorch, distributed": "pytorch/test/distributed/",
        "pytorch, all others": "pytorch/",
    }
    left = list(entries)
    for name, prefix in named.items():
        chosen = [file for file in left if file.startswith(prefix)]
        left = [file for file in left if file not in chosen]
        if chosen:
            yield name, chosen
    yield "all", list(entries)


if __name__ == "__main__":
    sys.exit(main())
