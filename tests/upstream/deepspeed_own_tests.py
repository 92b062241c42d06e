"""DeepSpeed's own unit tests on a CPU, twice as they are and twice with every patch: the same must pass and fail.

Usage: deepspeed_own_tests.py FOLDER, the folder ``tests`` of a DeepSpeed checkout (source archives have none). Prints
counts and every difference as JSON; exit code 1 if a test that is not flaky by itself ends otherwise with the patches.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

# What runs on a CPU in minutes, from each part that a patch touches, and around it.
FILES = (
    "autotuning/test_autotuning.py",
    "comm/test_dist.py",
    "elasticity/test_elastic.py",
    "launcher/test_ds_arguments.py",
    "launcher/test_multinode_runner.py",
    "launcher/test_run.py",
    "launcher/test_user_args.py",
    "monitor/test_monitor.py",
    "runtime/pipe/test_pipe_schedule.py",
    "runtime/pipe/test_topology.py",
    "runtime/test_data.py",
    "runtime/test_ds_config_dict.py",
    "runtime/test_ds_config_model.py",
    "runtime/test_lr_schedulers.py",
    "runtime/test_runtime_utils.py",
    "runtime/utils/test_partition.py",
    "utils/test_byte_cast.py",
    "utils/test_get_optim_files.py",
    "utils/test_groups.py",
    "utils/test_nvtx.py",
    "utils/test_partition_balanced.py",
)
# Tests that assert what a patch changes on purpose: test -> patch and reason.
ON_PURPOSE = {
    "test_add_export_with_special_characters": "quote_exports: double quotes are asserted, in which $ still expands",
}
_SECONDS_A_FILE = 900


def results(folder: Path, file: str, adapted: bool, scratch: Path) -> dict[str, str]:
    """Run one file of tests and return name -> passed, failed, error or skipped."""
    report = scratch / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", f"unit/{file}"]
    if adapted:
        launcher = str(Path(sys.executable).parent / "ascend-run")
        command = [launcher, "--device", "cpu", "--log-dir", str(scratch / "run"), *command]
    environ = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": str(scratch / "extensions"),
    }
    try:
        subprocess.run(command, cwd=folder, env=environ, capture_output=True, timeout=_SECONDS_A_FILE)
    except subprocess.TimeoutExpired:
        return {file: "timeout"}
    if not report.exists():
        return {file: "no report"}
    reported = {}
    for case in ET.parse(report).iter("testcase"):
        outcomes = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        reported[f"{file}::{case.get('classname')}::{case.get('name')}"] = outcomes[0] if outcomes else "passed"
    return reported or {file: "no tests"}


def main() -> int:
    """Run every file four times and report what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder `tests` of a DeepSpeed checkout")
    parser.add_argument("files", nargs="*", default=FILES, help="files below unit/ (default: the named list)")
    known = parser.parse_args()
    if not (known.folder / "unit").is_dir():
        parser.error(f"{known.folder}: has no folder unit — give the folder tests of a DeepSpeed checkout")
    runs: dict[str, list[dict[str, str]]] = {"plain": [{}, {}], "adapted": [{}, {}]}
    seconds = dict.fromkeys(runs, 0.0)
    with tempfile.TemporaryDirectory() as scratch:
        for file in known.files:
            for number in (0, 1):
                for kind in runs:
                    start = time.monotonic()
                    runs[kind][number] |= results(known.folder.resolve(), file, kind == "adapted", Path(scratch))
                    seconds[kind] += time.monotonic() - start
            print(f"{file}: {len([name for name in runs['plain'][0] if name.startswith(file)])}", file=sys.stderr)
    reported = summary(runs)
    print(json.dumps({**reported, "seconds": {kind: round(value) for kind, value in seconds.items()}}, indent=1))
    return 1 if reported["different"] else 0


def summary(runs: dict[str, list[dict[str, str]]]) -> dict[str, object]:
    """Return counts, the tests that are flaky by themselves, and those that the patches change."""
    names = sorted({name for both in runs.values() for one in both for name in one})
    seen = {name: {kind: [one.get(name, "absent") for one in both] for kind, both in runs.items()} for name in names}
    flaky = {name: reported for name, reported in seen.items() if any(len(set(both)) > 1 for both in reported.values())}
    steady = {name: reported for name, reported in seen.items() if name not in flaky}
    changed = {name: reported for name, reported in steady.items() if reported["plain"] != reported["adapted"]}
    counts: dict[str, int] = {}
    for reported in steady.values():
        counts[reported["plain"][0]] = counts.get(reported["plain"][0], 0) + 1
    return {
        "tests": len(names),
        "steady": counts,
        "flaky": flaky,
        "different": {name: reported for name, reported in changed.items() if _test(name) not in ON_PURPOSE},
        "on purpose": {name: ON_PURPOSE[_test(name)] for name in changed if _test(name) in ON_PURPOSE},
    }


def _test(name: str) -> str:
    return name.rpartition("::")[2]


if __name__ == "__main__":
    sys.exit(main())
