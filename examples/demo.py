"""`make demo`: one DeepSpeed job on a CPU, on an emulated NPU and without adaptation, with a verdict at the end.

The job is examples/megatron_deepspeed_gpt2, which does not mention this project: GPT-2 in two pipeline stages, the text
is Python's own standard library. Outputs are kept in runs/demo.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).with_name("megatron_deepspeed_gpt2")
PROGRAMS = Path(sys.executable).parent
LOSSES = re.compile(r"(validation|iteration +\d+).*lm loss(?: value)?: ([-+.\dEe]+)")
UNADAPTED_SECONDS = 20


@dataclass(frozen=True)
class Run:
    """One run of the job: its exit code (None if it was stopped), losses and last lines."""

    exit_code: int | None
    losses: tuple[float, ...]
    seconds: float
    tail: str


def main() -> int:
    """Run the demonstration; the exit code is 1 if a job failed or the losses differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/demo"), help="folder of the runs, removed first (default: %(default)s)"
    )
    parser.add_argument(
        "--data", type=Path, default=Path("data/stdlib"), help="prefix of the token files (default: %(default)s)"
    )
    args = parser.parse_args()
    shutil.rmtree(args.runs, ignore_errors=True)
    print(f"One DeepSpeed job, GPT-2 in two pipeline stages: about a minute on two free cores. Files: {args.runs}")

    step(1, "Python's standard library as GPT-2 tokens")
    prepare(args.data)
    step(2, "the job on two CPU processes")
    cpu = job(args, "cpu")
    step(3, "the same job through the real torch_npu, on two emulated NPUs")
    npu = job(args, "npu-emulated")
    step(4, f"the same job without adaptation, on two CPU processes, for at most {UNADAPTED_SECONDS} s")
    # A separate folder for extensions: a killed build leaves a lock in it, and later jobs would wait for the lock.
    bare = job(args, "cpu", "--no-adapt", seconds=UNADAPTED_SECONDS, extensions=args.runs / "extensions")
    return verdict(args.runs, cpu, npu, bare)


def step(number: int, text: str) -> None:
    """Print the title of a step."""
    print(f"\n[{number}/4] {text}", flush=True)


def prepare(data: Path) -> None:
    """Write the text, the vocabulary and the token files, unless they exist."""
    if data.with_name(f"{data.name}_text_document.idx").exists():
        print(f"{data}_text_document: exists already")
        return
    subprocess.run([sys.executable, EXAMPLE / "prepare_data.py", "--output-prefix", data], check=True)
    files = ["--input", f"{data}.jsonl", "--vocab", f"{data}-vocab.json", "--merge-file", f"{data}-merges.txt"]
    options = ["--dataset-impl", "mmap", "--tokenizer-type", "GPT2BPETokenizer", "--append-eod", "--workers", "2"]
    command = [PROGRAMS / "ascend-adapt", "preprocess", *files, "--output-prefix", data, *options]
    subprocess.run(command, check=True)


def job(
    args: argparse.Namespace, device: str, *options: str, seconds: float | None = None, extensions: Path | None = None
) -> Run:
    """Start the job and print its losses as they come."""
    folder = args.runs / "-".join((device, *(one.strip("-") for one in options)))
    command = [PROGRAMS / "ascend-run", "--nproc", "2", "--device", device, "--log-dir", folder, *options]
    command += [EXAMPLE / "pretrain_gpt2.py", "--data-path", f"{args.data}_text_document"]
    command += ["--pipeline-model-parallel-size", "2", "--train-iters", "6", "--log-interval", "1"]
    words = [str(word) for word in command]
    print("$ " + " ".join(words).replace(f"{PROGRAMS}/", ""), flush=True)
    variables = [f"TORCH_EXTENSIONS_DIR={extensions.absolute()}"] if extensions else []
    started = time.monotonic()
    losses, output = [], []
    limited = ["timeout", "--signal", "TERM", str(seconds)] if seconds else []
    print("  starting two ranks; losses follow", flush=True)
    with subprocess.Popen(
        ["env", *variables, *limited, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if found := LOSSES.search(line):
                losses.append(float(found[2]))
                name = " ".join(found[1].split())
                print(f"  {time.monotonic() - started:5.1f} s  {name:13s}  loss {losses[-1]:.4f}", flush=True)
    ended = process.returncode
    args.runs.mkdir(parents=True, exist_ok=True)
    folder.with_suffix(".txt").write_text("".join(output))
    is_ended = seconds is not None and time.monotonic() - started >= seconds
    return Run(None if is_ended else ended, tuple(losses), time.monotonic() - started, "".join(output[-15:]))


def verdict(runs: Path, cpu: Run, npu: Run, bare: Run) -> int:
    """Print the verdict on the three jobs, and return the exit code."""
    for name, run in (("cpu", cpu), ("npu-emulated", npu)):
        if run.exit_code:
            print(f"\nthe job on {name} failed with exit code {run.exit_code}:\n{run.tail}", file=sys.stderr)
            return 1
    difference = max(abs(a - b) / abs(a) for a, b in zip(cpu.losses, npu.losses, strict=True))
    is_equal = difference <= 1e-4
    outcomes = status(runs / "npu-emulated")
    applied = [one for one in outcomes if one["state"] == "applied"]
    wrong = [one for one in outcomes if one["state"] in ("drifted", "failed", "lost")]
    reasons = runs / "patches.txt"
    reasons.write_text("".join(f"{one['patch']}: {one['without']} without it: {one['why']}\n" for one in applied))
    effects = Counter(one["without"] for one in applied)
    prevented = ", ".join(f"{count} {effect}" for effect, count in effects.most_common())
    passed = is_equal and not wrong
    print(f"\nVerdict: {'the unmodified job trains on emulated NPUs' if passed else 'FAILED'}")
    print(
        f"  losses     {'equal' if is_equal else 'NOT equal'} on CPUs and emulated NPUs: {len(cpu.losses)} losses, "
        f"{cpu.losses[0]:.4f} to {cpu.losses[-1]:.4f}, differing by at most {difference:.1g} (fp32)"
    )
    print(f"  unadapted  {without_adaptation(bare, runs / 'extensions')}")
    print(f"  patches    {len(applied)} applied (without them: {prevented}); reasons: {reasons}")
    print(f"  drifted    {', '.join(one['patch'] for one in wrong) or 0} (also failed or lost)")
    print(f"  next       open {runs}/npu-emulated/rehearsal.html; ascend-run --device npu-emulated train.py")
    return 0 if passed else 1


def without_adaptation(run: Run, extensions: Path) -> str:
    """Describe the job without adaptation."""
    if run.losses:
        return f"{len(run.losses)} losses in {run.seconds:.0f} s: DeepSpeed's operators are installed or not needed"
    builds = sorted(path.name for path in extensions.glob("*") if path.is_dir())
    compiled = f"; DeepSpeed was compiling {', '.join(builds)}" if builds else ""
    outcome = "stopped" if run.exit_code is None else f"failed with exit code {run.exit_code}"
    return f"{outcome} after {run.seconds:.0f} s without a training step{compiled}"


def status(run_directory: Path) -> list[dict[str, Any]]:
    """Return the state of each patch in a job."""
    command = [PROGRAMS / "ascend-adapt", "status", run_directory, "--json"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    outcomes: list[dict[str, Any]] = json.loads(printed)["outcomes"]
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
