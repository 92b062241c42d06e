"""Start every example script of both Megatron-DeepSpeed forks with tiny sizes on the CPU, and print or write the table.

    python tests/upstream_runs/megatron_deepspeed/example_scripts.py deepspeedai '*/MoE/*' --seen runs/examples.jsonl
    python tests/upstream_runs/megatron_deepspeed/example_scripts.py deepspeedai --seen runs/examples.jsonl --write PAGE

A script runs unmodified in a copy of the checkout, where deepspeed, torchrun, python and others only record how they
are called (its `<Specify path>` are filled in). What it would start is then started by ascend-run, with every size made
small, fp32 for fp16, data of ours, and three steps, an evaluation and a save. Runs in the file are not made again.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import code_bases
import marked_page
import records
import upstream_job
from megatron_deepspeed import jobs
from records import Record
from upstream_job import Place, UpstreamJob

MAKER = "tests/upstream_runs/megatron_deepspeed/example_scripts.py"
FOLDERS = {"deepspeedai": jobs.DEEPSPEEDAI, "bigscience": jobs.BIGSCIENCE}
RECORDED = (
    *("deepspeed", "torchrun", "python", "python3", "srun", "sbatch", "nvidia-smi"),
    *("ds_ssh", "ssh", "pdsh", "sudo", "wget", "curl", "pip"),
)
# Two devices on each host, and one answer of each host; anything else is written down with its configuration.
RECORDER = r"""#!/bin/bash
name=$(basename "$0")
case "$name $1" in
  nvidia-smi*) printf 'GPU\nGPU\n'; exit ;;
  ds_ssh*) printf 'host\nhost\nGPU\nGPU\n'; exit ;;
  "ssh "*) exit 1 ;;
  "python -c"|"python3 -c"|"python -"|"python3 -") exec {python} "$@" ;;
esac
words=" $(echo "$*" | tr '=\n' '  ') "
path=${{words##* --deepspeed_config }}
path=${{path%% *}}
file=$(mktemp "$RECORDED_CALLS/XXXXXXXX")
printf '%s\0' "$PWD" "$(cat "$path" 2>/dev/null)" "$name" "$@" >"$file"
"""
TRAINING = ("pretrain_gpt.py", "finetune_llama.py")
NOT_GPT = {
    "pretrain_bert.py": "BERT: its sentences need nltk's data, its samples the compiled helper",
    "pretrain_t5.py": "T5: its sentences need nltk's data, its samples the compiled helper",
    "pretrain_ict.py": "ICT: needs a pretrained BERT and text with titles",
    "main.py": "evaluates or finetunes a checkpoint on a task's data",
    "evaluate.py": "evaluates a checkpoint with lm_eval's data",
}
SIZES = {
    "--hidden-size": "64",
    "--ffn-hidden-size": "128",
    "--kv-channels": "16",
    "--num-attention-heads": "4",
    "--num-key-value-heads": "4",
    "--seq-length": "32",
    "--max-position-embeddings": "32",
    "--micro-batch-size": "2",
    "--global-batch-size": "4",
    "--train-iters": "3",
    "--train-samples": "12",
    "--log-interval": "1",
    "--eval-interval": "3",
    "--eval-iters": "1",
    "--save-interval": "2",
    "--num-workers": "0",
    "--exit-interval": "100",
    "--lr-warmup-iters": "1",
    "--lr-decay-iters": "10",
    # What only sizes decide, so that scripts which differ in nothing else are run once.
    "--lr": "1.5e-4",
    "--min-lr": "1e-5",
    "--init-method-std": "0.02",
    "--lr-decay-tokens": "1000000",
    "--lr-warmup-tokens": "100",
    "--train-tokens": "1000000",
}
PARALLEL = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--ds-sequence-parallel-size")
OURS = (
    *("--tokenizer-type", "--tokenizer-model", "--tokenizer-name-or-path", "--vocab-file", "--merge-file"),
    *("--deepspeed_config", "--tensorboard-dir", "--kill-switch-path", "--exit-duration-in-mins"),
)
EXPERTS = ("--num-experts", "--moe-expert-parallel-size")


@dataclass(frozen=True)
class Launch:
    """What a script would start: a program of the code base, its options, and DeepSpeed's configuration."""

    program: str
    options: tuple[tuple[str, ...], ...]
    configuration: str = ""


def scripts(checkout: Path) -> list[str]:
    """Return every shell and Slurm script of a checkout."""
    listed = subprocess.run(["git", "-C", str(checkout), "ls-files"], capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if name.endswith((".sh", ".slurm"))]


def launches(tree: Path, script: str, commands: Path) -> tuple[list[Launch], str]:
    """Run a script in a copy of the checkout with programs that only record; return its launches and last words."""
    copy = tree / script
    # Some are written for their own folder, some for that of the checkout.
    for where in (copy.parent, tree):
        found, said = _launches(copy, where, commands)
        trains = [one for one in found if one.program in TRAINING]
        if any(one.configuration or "--deepspeed_config" not in {each[0] for each in one.options} for one in trains):
            break
    return found, said.replace(f"{tree}/", "")


def _launches(script: Path, where: Path, commands: Path) -> tuple[list[Launch], str]:
    with tempfile.TemporaryDirectory() as calls:
        environ = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "RECORDED_CALLS": calls}
        ended = subprocess.run(
            ["timeout", "10", "bash", str(script)],
            cwd=where,
            env=environ,
            capture_output=True,
            text=True,
            errors="replace",
        )
        files = sorted(Path(calls).glob("????????"), key=lambda path: path.stat().st_mtime_ns)
        # A script that does not end in time leaves an empty one.
        recorded = [text.split("\0")[:-1] for text in (path.read_text() for path in files) if text]
    said = (ended.stdout + ended.stderr).strip().splitlines()
    found = [one for _, configuration, *words in recorded for one in _launch(words, configuration)]
    return found, said[-1].strip()[:200] if said else ""


def copied(checkout: Path, tree: Path) -> Path:
    """Return a copy of a checkout by links; in its scripts ``<Specify path>`` is filled in."""
    subprocess.run(["cp", "--archive", "--symbolic-link", str(checkout), str(tree)], check=True)
    for path in (tree / name for name in scripts(checkout)):
        text = re.sub(r"(?<==)<[^<>\n]*>|<Specify[^<>\n]*>", "/place", path.read_text())
        path.unlink()
        path.write_text(text)
        for needed in ("tmp", "dataset"):
            (path.parent / needed).mkdir(exist_ok=True)
    return tree


def recorders(folder: Path) -> Path:
    """Write the programs that only record into a folder."""
    folder.mkdir()
    for name in RECORDED:
        (folder / name).write_text(RECORDER.format(python=sys.executable))
        (folder / name).chmod(0o755)
    return folder


def _launch(words: list[str], configuration: str) -> Iterator[Launch]:
    while "-c" in words and any(one.endswith("sh") for one in words):  # srun ... sh -c "python ..."
        words = shlex.split(words[words.index("-c") + 1])
    programs = [index for index, one in enumerate(words) if one.endswith(".py")]
    if not programs:
        return
    options: list[list[str]] = []
    for word in words[programs[0] + 1 :]:
        if word.startswith("--"):
            options.append(word.split("=", 1))
        elif options:
            options[-1].append(word)
    yield Launch(Path(words[programs[0]]).name, tuple(map(tuple, options)), configuration)


def small(launch: Launch, bigscience: bool) -> tuple[Launch, int]:
    """Return a launch with small sizes, and how many ranks it takes."""
    options: dict[str, tuple[str, ...]] = {one[0]: one[1:] for one in launch.options}
    kept = {name: min(2, int(options[name][0])) for name in (*PARALLEL, *EXPERTS) if options.get(name)}
    ranks = 1
    for name in PARALLEL:
        ranks *= kept.get(name, 1)
    if kept.get("--num-experts", 1) > 1:
        ranks = max(ranks, kept.get("--moe-expert-parallel-size", 1))
    small_options = {name: (str(value),) for name, value in kept.items()}
    small_options |= {name: (value,) for name, value in SIZES.items() if name in options}
    small_options |= {"--num-layers": ("2",), "--train-iters": ("3",), "--log-interval": ("1",)}
    small_options |= {"--num-workers": ("0",)} | ({"--valid-num-workers": ("0",)} if bigscience else {})
    if "--rampup-batch-size" in options:
        small_options["--rampup-batch-size"] = ("2", "2", "4")
    if "--fp16" in options:
        # From its default, 2**32, the loss scale would need more steps than these to come down.
        small_options["--initial-loss-scale"] = ("1024",)
    if "--train-samples" in options:
        del small_options["--train-iters"]
    options |= small_options
    if "--deepspeed" in options:
        options.pop("--fp16", None)
    # A checkpoint that is loaded and not the one that is saved is somebody's pretrained one.
    if options.get("--load") != options.get("--save"):
        options.pop("--load", None)
    options |= {name: () for name in ("--data-path", "--save", "--load") if name in options}  # ours, see command
    for name in OURS:
        options.pop(name, None)
    configuration = launch.configuration
    with contextlib.suppress(ValueError):  # what is not JSON is for DeepSpeed to refuse
        configuration = json.dumps(_small_configuration(json.loads(configuration), options, ranks))
    return Launch(
        launch.program, tuple(sorted((name, *values) for name, values in options.items())), configuration
    ), ranks


def command(launch: Launch, ranks: int, place: Place) -> list[str]:
    """Return the words of a small launch with paths of this machine."""
    prefix, vocabulary, merges = jobs.data(place)
    saved = str(place.folder / "checkpoints")
    paths = {
        "--data-path": prefix,
        "--vocab-file": vocabulary,
        "--merge-file": merges,
        "--save": saved,
        "--load": saved,
    }
    words = [str(place.checkout / launch.program)]
    for name, *values in launch.options:
        words += [name, *([paths[name]] if name in paths else values)]
    words += ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", vocabulary, "--merge-file", merges]
    if launch.configuration:
        path = place.folder / "deepspeed_config.json"
        path.write_text(launch.configuration)
        words += ["--deepspeed_config", str(path)]
    return words


def _small_configuration(content: dict[str, Any], options: dict[str, tuple[str, ...]], ranks: int) -> dict[str, Any]:
    parts = 1
    for name in PARALLEL:
        parts *= int(options.get(name, ("1",))[0])
    batch = int(options["--global-batch-size"][0]) if "--global-batch-size" in options else 2 * ranks // parts
    content |= {"train_micro_batch_size_per_gpu": 2, "train_batch_size": batch, "steps_per_print": 1}
    content.pop("gradient_accumulation_steps", None)
    if "fp16" in content:
        content["fp16"] = {**content["fp16"], "enabled": False}
    if content.get("curriculum_learning"):
        steps = {"total_curriculum_step": 2, "difficulty_step": 8}
        content["curriculum_learning"] |= {"min_difficulty": 8, "max_difficulty": 32, "schedule_config": steps}
    return content


def run(launch: Launch, ranks: int, code_base: str, name: str, folder: Path) -> Record:
    """Train what a script would have started."""
    checkout = code_bases.code_base(code_base).checkout(os.environ)
    job = UpstreamJob(
        "example",
        lambda place: command(launch, ranks, place),
        code_base,
        ranks,
        loss=jobs.LOSS,
        variables={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        seconds=600,
    )
    shared = folder / code_base
    shared.mkdir(parents=True, exist_ok=True)
    place = Place(folder / name.replace("/", "_"), shared, checkout, "cpu", "float32")
    begin = time.monotonic()
    ended = upstream_job.run(job, place)
    return Record.of(name, place, ended, without=(), adapted=True, seconds=time.monotonic() - begin)


def reason(found: Sequence[Launch], said: str) -> str:
    """Return why a script is not run, or nothing."""
    if any(one.program in TRAINING for one in found):
        return ""
    named = [NOT_GPT[one.program] for one in found if one.program in NOT_GPT]
    if named:
        return named[-1]
    return f"starts {found[-1].program}, no training" if found else f"starts no program: {said}"


def main() -> int:
    """Run what is asked for, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fork", choices=FOLDERS)
    parser.add_argument("scripts", nargs="*", metavar="PATTERN", help="scripts to run; none: only the table")
    parser.add_argument("--seen", type=Path, required=True, metavar="FILE", help="records of runs, read and added to")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep outputs there")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table between the marks of this page")
    known = parser.parse_args()
    try:
        checkout = code_bases.code_base(FOLDERS[known.fork]).checkout(os.environ)
    except code_bases.NotHere as error:
        print(f"not checked: {error}")
        return 0
    known.seen.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        why, tiny, same = _read(checkout, Path(scratch), known.fork == "bigscience")
        for pattern in known.scripts:
            for script in fnmatch.filter(tiny, pattern):
                name = f"{known.fork}:{script}"
                if name not in {record.job for record in records.read(known.seen)}:
                    record = run(*tiny[script], FOLDERS[known.fork], name, (known.keep or Path(scratch)).absolute())
                    records.append(known.seen, record)
                    print(f"{name}: {record.problems or record.losses}, {record.seconds:.0f} s", flush=True)
    have = {record.job: record for record in records.read(known.seen)}
    shown = {script: f"not run: {text}" for script, text in why.items()}
    shown |= {script: f"as {first}" for script, first in same.items()}
    shown |= {script: _shown(have.get(f"{known.fork}:{script}")) for script in tiny}
    lines = [f"| {script} | {shown[script]} |\n" for script in scripts(checkout)]
    lines[:0] = ["| script | result |\n", "|---|---|\n"]
    if known.write is None:
        print("".join(lines))
    else:
        marked_page.put(known.write, "".join(lines), MAKER, known.fork)
    return int(any(have[name].problems for name in have if name.startswith(f"{known.fork}:")))


def _read(
    checkout: Path, scratch: Path, bigscience: bool
) -> tuple[dict[str, str], dict[str, tuple[Launch, int]], dict[str, str]]:
    """Return which scripts are not run and why, what is run, and which scripts start the same as another."""
    tree, commands = copied(checkout, scratch / checkout.name), recorders(scratch / "commands")
    why, tiny, same = {}, {}, {}
    for script in scripts(checkout):
        found, said = launches(tree, script, commands)
        if text := reason(found, said):
            why[script] = text.replace("|", "")
            continue
        launch = small([one for one in found if one.program in TRAINING][-1], bigscience)
        (first, *_) = [one for one, other in tiny.items() if other == launch] or [script]
        if first == script:
            tiny[script] = launch
        else:
            same[script] = first
    return why, tiny, same


def _shown(record: Record | None) -> str:
    if record is None:
        return "not run"
    if record.problems:
        return f"`{record.reported.partition(' (exit code')[0][:160]}`".replace("|", r"\|")
    return f"{record.losses[0]:.6f} → {record.losses[2]:.6f}"


if __name__ == "__main__":
    sys.exit(main())
