"""Greedy text of unmodified generation scripts beside `ascend-adapt generate`, on the same checkpoint.

    python generation.py FOLDER [neox] [bigscience]

Each code base saves a model whose weights are still nearly those that it drew, with a large standard deviation: a
trained model of this size repeats one token. Exit code 1 if a text differs. Code bases are found as in run.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import checkpoints
from checkpoints import CASES, Case, deepy
from megatron_deepspeed.jobs import SAME
from upstream_job import Place

PROMPTS = ("import os", "def main(): return 1", "self.value = 1", "x")
NEW_TOKENS = 12
DEVIATION = 0.3
# generate.py does not clear its key/value cache between prompts.
GENERATE_PY = {"text_gen_type": "input-file", "prompt_end": "\n", "maximum_tokens": NEW_TOKENS, "recompute": True}
NEOX = Case("gpt-neox", 1, {"init_method": "normal", "init_method_std": DEVIATION})
# No rows of padding: generate_samples_gpt.py generates them, and fails at decoding.
BIGSCIENCE = replace(
    CASES["bigscience"],
    ranks=1,
    arguments=("--init-method-std", str(DEVIATION), "--make-vocab-size-divisible-by", "1"),
)


def neox_generation(place: Place) -> Sequence[str]:
    """Return the command of GPT-NeoX's generate.py."""
    files = {"sample_input_file": str(prompts(place)), "sample_output_file": str(place.folder / "theirs.jsonl")}
    load = {"load": str(place.folder.parent / "neox/saved"), "no_load_rng": True}
    launcher, _, *configuration = deepy(place, 1, NEOX.settings, {**GENERATE_PY, **files, **load})
    return [launcher, str(place.checkout / "generate.py"), *configuration]


def bigscience_generation(place: Place) -> Sequence[str]:
    """Return the command of bigscience's generate_samples_gpt.py, which stops before the last line of its input."""
    data, saved = place.shared / "data", place.folder.parent / "bigscience/saved"
    model = ("--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32")
    words = (
        "--max-position-embeddings",
        "32",
        "--micro-batch-size",
        "1",
        "--global-batch-size",
        "1",
        "--load",
        str(saved),
    )
    files = ("--vocab-file", str(data / "vocab.json"), "--merge-file", str(data / "merges.txt"))
    output = (
        "--sample-input-file",
        str(prompts(place, last="\n")),
        "--sample-output-file",
        str(place.folder / "theirs.txt"),
    )
    script = str(place.checkout / "tools/generate_samples_gpt.py")
    # It generates one token more than it is asked for.
    greedy = ("--greedy", "--out-seq-length", str(NEW_TOKENS - 1))
    return [script, *model, *words, *SAME, *BIGSCIENCE.arguments, *files, *greedy, *output]


def prompts(place: Place, last: str = "") -> Path:
    """Write the prompts one a line, and return the file."""
    path = place.folder / "prompts.txt"
    path.write_text("".join(f"{prompt}\n" for prompt in PROMPTS) + last)
    return path


def ours(saved: Path, texts: Sequence[str], *tokenizer: str) -> list[str]:
    """Return the texts of `ascend-adapt generate`."""
    words = ["--model", str(saved), "--device", "cpu", "--json", "--max-new-tokens", str(NEW_TOKENS), *tokenizer]
    words += [word for text in texts for word in ("--prompt", text)]
    command = [sys.executable, "-m", "ascend_adapt.cli", "generate", *words]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [one["text"] for one in json.loads(printed)["results"]]


def neox(folder: Path) -> list[bool]:
    """Return whether each text is GPT-NeoX's."""
    generate(folder, "neox", NEOX, neox_generation)
    theirs = [json.loads(line)["text"] for line in (folder / "neox-generation/theirs.jsonl").open()]
    vocabulary = folder / "shared/gpt-neox/tokenizer.json"
    texts = ours(folder / "neox/saved", PROMPTS, "--vocab-file", str(vocabulary))
    return [one == other for one, other in zip(texts, theirs, strict=True)]


def bigscience(folder: Path) -> list[bool]:
    """Return whether each text is bigscience's, whose prompts keep their line break."""
    generate(folder, "bigscience", BIGSCIENCE, bigscience_generation)
    theirs = (folder / "bigscience-generation/theirs.txt").read_text()
    lines, data = [f"{prompt}\n" for prompt in PROMPTS], folder / "shared" / BIGSCIENCE.code_base / "data"
    files = ("--vocab-file", str(data / "vocab.json"), "--merge-file", str(data / "merges.txt"))
    texts = ours(folder / "bigscience/saved", lines, *files)
    return [f"Context:{line}\n\nMegatron-LM:{text}\n" in theirs for line, text in zip(lines, texts, strict=True)]


def generate(folder: Path, name: str, case: Case, command: Callable[[Place], Sequence[str]]) -> None:
    """Train and save, then run upstream's generation script."""
    saving = checkpoints.job(case, 1, lambda place: checkpoints.saving(case, place))
    checkpoints.run(saving, case, folder / name, folder)
    try:
        checkpoints.run(checkpoints.job(case, 1, command), case, folder / f"{name}-generation", folder)
    except SystemExit as ended:
        # A generation script prints no loss; any other problem ends this one too.
        if "['no loss was printed']" not in str(ended):
            raise


if __name__ == "__main__":
    where, found = Path(sys.argv[1]).absolute(), {}
    for name in sys.argv[2:] or ("neox", "bigscience"):
        found[name] = {"neox": neox, "bigscience": bigscience}[name](where)
        print(f"{name}: {sum(found[name])} of {len(PROMPTS)} texts are upstream's", flush=True)
    sys.exit(0 if all(map(all, found.values())) else 1)
