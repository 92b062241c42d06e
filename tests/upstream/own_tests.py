"""Libraries' own tests, as they are and under ascend-run: what passes without the product passes with it.

Usage: own_tests.py SUITE CHECKOUT [FILES ...], SUITE as in SUITES and CHECKOUT at a commit that fits the installed
packages. Prints counts and every difference as JSON; exit code 1 if a test that is not flaky by itself passes, or is
skipped, without the product and fails with it. Nothing is downloaded, so tests that need a model hub fail either way.
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
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

# What runs on a CPU in minutes, from each part that a patch touches, and around it.
OF_DEEPSPEED = """
    autotuning/test_autotuning comm/test_dist elasticity/test_elastic launcher/test_ds_arguments
    launcher/test_multinode_runner launcher/test_run launcher/test_user_args monitor/test_monitor
    runtime/pipe/test_pipe_schedule runtime/pipe/test_topology runtime/test_data runtime/test_ds_config_dict
    runtime/test_ds_config_model runtime/test_lr_schedulers runtime/test_runtime_utils runtime/utils/test_partition
    utils/test_byte_cast utils/test_get_optim_files utils/test_groups utils/test_nvtx utils/test_partition_balanced
"""
MODELS = "gpt2 gpt_neox llama mistral qwen2"
OF_PEFT = "config tuners_utils initialization other mapping custom_models"


@dataclass(frozen=True)
class Suite:
    """Tests of one library: files in ``folder`` of its checkout; one process each, or one for all."""

    folder: str
    files: tuple[str, ...]
    sources: str = ""
    """Folder of the checkout with the library itself, first on the path; the installed one if empty."""
    options: tuple[str, ...] = ()
    together: bool = True
    environ: dict[str, str] = field(default_factory=dict)


SUITES = {
    "deepspeed": Suite(
        "tests",
        tuple(f"unit/{name}.py" for name in OF_DEEPSPEED.split()),
        together=False,
        environ={"DS_ACCELERATOR": "cpu"},
    ),
    "accelerate": Suite(
        ".",
        ("tests",),
        "src",
        tuple(f"--ignore=tests/{name}" for name in ("test_examples.py", "deepspeed", "tp", "test_fp8.py")),
    ),
    "transformers": Suite(".", tuple(f"tests/models/{one}/test_modeling_{one}.py" for one in MODELS.split()), "src"),
    "peft": Suite(
        ".",
        tuple(f"tests/test_{name}.py" for name in OF_PEFT.split()),
        "src",
        # One of 50 methods: all of them are 16549 tests.
        ("-k", "not TestPeftCustomModel or (Vanilla and LoRA and not autocast)"),
    ),
}
# Part of a test's name or of its failure's message -> why the product is not at fault.
EXPLAINED = {
    "test_add_export_with_special_characters": "quote_exports: double quotes are asserted, in which $ still expands",
    "test_free_memory_dereferences_prepared_components": "compares the free memory of the whole machine",
    "couldn't connect to 'https://huggingface.co'": "needs the network; without the product it is skipped",
    "No module named 'mpi4py'": "DeepSpeed without a launcher asks for mpi4py on any accelerator",
    "No module named 'parameterized'": "the test starts a second environment without it",
}
# The same, on NPUs only, real and emulated.
ON_NPUS = {
    "to have the same dtype, but got: float != double": "torch_npu warns and casts float64 to float32",
    "UnboundLocalError: cannot access local variable 'torch'": "transformers' get_device_properties on any NPU",
    "AdaLoraConfig": "peft: moving AdaLoRA's `ranknum` to any other device, or dtype, makes it trainable",
}
_SECONDS = 3000


def results(suite: Suite, checkout: Path, files: tuple[str, ...], device: str, scratch: Path) -> dict[str, str]:
    """Run files of tests, under ascend-run on a ``device`` or "plain"; return name -> outcome and message."""
    report = scratch / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", f"--junitxml={report}"]
    command += [*suite.options, *files]
    if device != "plain":
        launcher = [sys.executable, "-m", "ascend_adapt.launch.cli"]
        command = [*launcher, "--device", device, "--log-dir", str(scratch / "run"), *command]
    sources = str(checkout / suite.sources) if suite.sources else ""
    environ = {
        **os.environ,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join(filter(None, (sources, os.environ.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": str(scratch / "extensions"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        **suite.environ,
    }
    name = " ".join(files)
    try:
        subprocess.run(command, cwd=checkout / suite.folder, env=environ, capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return {name: "timeout"}
    if not report.exists():
        return {name: "no report"}
    found = {}
    for case in ET.parse(report).iter("testcase"):
        ends = [f"{one.tag}: {one.get('message')}" for one in case if one.tag in ("failure", "error", "skipped")]
        found[f"{case.get('classname')}::{case.get('name')}"] = ends[0] if ends else "passed"
    return found or {name: "no tests"}


def main() -> int:
    """Run the files without the product and with it, and report what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("files", nargs="*", help="files in the checkout's folder of tests (default: a named list)")
    parser.add_argument("--device", default="cpu", help="what ascend-run runs them on (default: cpu)")
    parser.add_argument("--repeat", type=int, default=2, help="how often, to find the flaky ones (default: 2)")
    asked = parser.parse_args()
    suite, checkout = SUITES[asked.suite], asked.checkout.resolve()
    files = tuple(asked.files) or suite.files
    if missing := [file for file in files if not (checkout / suite.folder / file).exists()]:
        parser.error(f"{checkout}: has no {', '.join(missing)} — pass a checkout of {asked.suite}")
    runs: dict[str, list[dict[str, str]]] = {
        kind: [{} for _ in range(asked.repeat)] for kind in ("plain", asked.device)
    }
    seconds: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        for together in [files] if suite.together else [(file,) for file in files]:
            for number in range(asked.repeat):
                for kind in runs:
                    start = time.monotonic()
                    runs[kind][number] |= results(suite, checkout, together, kind, Path(scratch))
                    seconds[kind] += round(time.monotonic() - start)
            print(f"{' '.join(together)}: {len(runs['plain'][0])} tests so far", file=sys.stderr)
    reported = summary(runs["plain"], runs[asked.device], asked.device)
    print(json.dumps({**reported, "seconds": seconds}, indent=1))
    return 1 if reported["worse"] else 0


def summary(plain: list[dict[str, str]], adapted: list[dict[str, str]], device: str) -> dict[str, object]:
    """Return counts, the flaky tests, and those that end otherwise with the product on ``device``."""
    names = {name for one in (*plain, *adapted) for name in one}
    seen = {name: [[one.get(name, "absent") for one in both] for both in (plain, adapted)] for name in sorted(names)}
    flaky = {name: both for name, both in seen.items() if any(len({_kind(end) for end in ends}) > 1 for ends in both)}
    ends = {name: (before[0], after[0]) for name, (before, after) in seen.items() if name not in flaky}
    changed = {name: pair for name, pair in ends.items() if _kind(pair[0]) != _kind(pair[1])}
    failing = {name: pair for name, pair in changed.items() if _kind(pair[1]) not in ("passed", "skipped")}
    known = EXPLAINED | (ON_NPUS if device.startswith("npu") else {})
    reasons = {
        name: next((why for text, why in known.items() if text in name or text in after), "")
        for name, (_, after) in failing.items()
    }
    return {
        "tests": len(names),
        "without and with": {
            f"{before} -> {after}": count
            for (before, after), count in sorted(Counter((_kind(a), _kind(b)) for a, b in ends.values()).items())
        },
        "flaky": flaky,
        "worse": {name: pair for name, pair in failing.items() if not reasons[name]},
        "explained": {name: reason for name, reason in reasons.items() if reason},
        "skipped with the product": Counter(b for a, b in changed.values() if _kind(b) == "skipped"),
    }


def _kind(end: str) -> str:
    return end.partition(":")[0]


if __name__ == "__main__":
    sys.exit(main())
